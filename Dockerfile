# One image for every role: the command says which role file is started. docker build -t agent-orc:local .
FROM node:24-slim
ENV NODE_ENV=production
WORKDIR /opt/agent-orc
COPY package.json package-lock.json .npmrc ./
RUN npm ci --omit=dev --omit=optional --ignore-scripts
COPY . .
# Where the volume of a VirtualFS server is; a new one belongs to whoever owns the folder.
RUN mkdir -p /var/lib/agent-orc/vfs && chown node:node /var/lib/agent-orc/vfs
# Nothing else in the image belongs to this user, so no role writes to it.
USER node
# The options of `npm start`, without npm and its shell in between: they would not pass SIGTERM on.
ENTRYPOINT ["node", "--max-semi-space-size=16", "--heap-growing-percent=400", "--no-memory-reducer", "--v8-pool-size=1", "--external-memory-accounted-in-global-limit", "--concurrent-marking-max-worker-num=1", "--no-incremental-marking-task", "cli/agent-orc.js"]
CMD ["start", "--config", "config/conductor.yaml"]
