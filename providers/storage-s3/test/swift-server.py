# OpenStack Swift with its API of S3, all four servers in one process: `swift.py <empty folder> <access key> <secret>`.
# The folder's file system has to keep user xattrs. Prints the port once it accepts requests; ends with its standard input, and takes the folder with it.
import os, shutil, sys

folder, access_key, secret = sys.argv[1:]

import eventlet
from eventlet import tpool, wsgi
from swift.common import utils
from swift.common.utils import NullLogger

# Swift logs to syslog, and here nobody reads it.
config = {
    'swift.conf': '[swift-hash]\nswift_hash_path_suffix = test\n',
    'account-server.conf': '[DEFAULT]\n{common}[app:main]\nuse = egg:swift#account\n',
    'container-server.conf': '[DEFAULT]\n{common}[app:main]\nuse = egg:swift#container\n',
    'object-server.conf': '[DEFAULT]\n{common}[app:main]\nuse = egg:swift#object\n',
    'proxy-server.conf': '''[DEFAULT]
{common}[pipeline:main]
pipeline = catch_errors gatekeeper listing_formats s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_{user} = {secret} .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
''',
}
common = f'swift_dir = {folder}\ndevices = {folder}/devices\nmount_check = false\nbind_ip = 127.0.0.1\nworkers = 0\nfallocate_reserve = 0\nlog_address = {folder}/no-log\n'
for name, text in config.items():
    with open(os.path.join(folder, name), 'w') as file:
        file.write(text.format(common=common, user=access_key.replace(':', '_'), secret=secret))
utils.set_swift_dir(folder)
utils.eventlet_monkey_patch()

# Not before the above: policies are read from swift.conf when these are loaded.
from swift.common.ring import RingBuilder
from swift.common.wsgi import SwiftHttpProtocol, loadapp

os.makedirs(os.path.join(folder, 'devices', 'd'))
sockets = {}
for server in ('account', 'container', 'object', 'proxy'):
    sockets[server] = eventlet.listen(('127.0.0.1', 0))
    if server == 'proxy':
        continue
    # One device that has every partition.
    ring = RingBuilder(part_power=1, replicas=1, min_part_hours=0)
    ring.add_dev({
        'id': 0, 'region': 1, 'zone': 1, 'ip': '127.0.0.1', 'port': sockets[server].getsockname()[1],
        'device': 'd', 'weight': 1.0, 'meta': '',
    })
    ring.rebalance()
    ring.get_ring().save(os.path.join(folder, f'{server}.ring.gz'))


class Cache:
    """Memcached for one process; Swift does not make a bucket without one."""
    def __init__(self, app):
        self.app, self.values = app, {}

    def __call__(self, env, start_response):
        env['swift.cache'] = self
        return self.app(env, start_response)

    def get(self, key, **_):
        return self.values.get(key)

    def set(self, key, value, **_):
        self.values[key] = value

    def delete(self, key, **_):
        self.values.pop(key, None)


# As swift.common.wsgi does it for one server; headers keep their spelling, as clients of S3 expect.
for server, sock in sockets.items():
    app = loadapp(os.path.join(folder, f'{server}-server.conf'), global_conf={'log_name': server})
    eventlet.spawn(wsgi.server, sock, Cache(app), NullLogger(), protocol=SwiftHttpProtocol, capitalize_response_headers=False)
print(sockets['proxy'].getsockname()[1], flush=True)
tpool.execute(sys.stdin.read)
shutil.rmtree(folder, ignore_errors=True)
os._exit(0)
