# An E2B template with a worker: npx @e2b/cli template create agent-orc-worker --path . --dockerfile examples/e2b/e2b.Dockerfile
# Add what agents need for their work. No start command: the runner starts the worker when it knows for whom.
FROM node:24-slim
WORKDIR /opt/agent-orc
COPY package.json package-lock.json ./
RUN npm ci --omit=dev --omit=optional --ignore-scripts
COPY . .
