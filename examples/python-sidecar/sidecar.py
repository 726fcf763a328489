"""Says every prompt back, and recalls what it was told. `python3 sidecar.py 7071`, then GENERAL_SIDECAR_URL=http://127.0.0.1:7071 at the runner."""
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

told = {}  # What each session was told. A sidecar for production bounds this.

class Sidecar(BaseHTTPRequestHandler):
    def answer(self, status, body=None):
        self.send_response(status)
        self.send_header('content-type', 'application/json')
        self.end_headers()
        if body is not None:
            self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        session = self.path.split('?')[0].removeprefix('/state/')
        if self.path == '/health':
            self.answer(200, {'ok': True, 'runtime': 'general'})
        elif session in told:
            self.answer(200, told[session])
        else:
            self.answer(404, {'error': 'not_found'})

    def do_POST(self):
        session = self.path.split('?')[0].removeprefix('/state/')
        try:
            body = json.loads(self.rfile.read(int(self.headers['content-length'])))
            if session == '/run':
                run_in, prompt = str(body['sessionId']), body['prompt']
                if not isinstance(prompt, str):
                    raise ValueError
            elif not isinstance(body, list):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            return self.answer(400, {'error': 'invalid_request'})
        if session == '/run':
            return self.run(told.setdefault(run_in, []), prompt)
        told[session] = body
        self.answer(204)

    def run(self, before, prompt):
        self.send_response(200)
        self.send_header('content-type', 'application/x-ndjson')
        self.end_headers()
        try:
            while prompt == 'wait':  # When the run is stopped its connection closes, and this write fails.
                self.event(type='progress', stage='waiting')
                time.sleep(0.1)
            text = ', '.join(before) if prompt == 'recall' else prompt
            before.append(prompt)
            self.event(type='assistant', text=text)
            self.event(type='result', text=text)
        except OSError:
            pass

    def event(self, **event):
        self.wfile.write(json.dumps(event).encode() + b'\n')

    def log_message(self, *_):
        pass

if __name__ == '__main__':
    server = ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Sidecar)
    print(server.server_port, flush=True)
    server.serve_forever()
