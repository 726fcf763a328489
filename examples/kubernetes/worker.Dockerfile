# The image of a worker pod: docker build -f examples/kubernetes/worker.Dockerfile -t registry.example.com/agent-orc-worker:1 .
# Add what agents need for their work (git, python, compilers); their tools run in this image.
FROM node:24-slim
WORKDIR /opt/agent-orc
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --omit=optional --ignore-scripts
COPY . .
# Pods run as this user, with a root filesystem that nobody can write to.
USER 1000
WORKDIR /workspace
ENTRYPOINT ["node", "/opt/agent-orc/cli/agent-orc.js", "start", "--config", "/opt/agent-orc/config/worker.yaml"]
