// Says back what it hears, over WebSockets; does nothing else. For bench/idle.js.
import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const server = createServer((request, response) => response.end("echo\n"));
const sockets = new WebSocketServer({ server, perMessageDeflate: false });
sockets.on("connection", (socket) => {
  socket.on("error", () => socket.terminate());
  socket.on("message", (data) => socket.send(data, { binary: false }));
});
server.listen(process.env.PORT, process.env.HOST, 1024);
