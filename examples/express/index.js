const express = require("express");

const app = express();
const instance = `${process.env.CORTEX_PROCESS || "web"}.${process.env.CORTEX_SLOT || "1"}`;

app.get("/", (request, response) => {
  response.type("text").send(`Hello from Express, ${instance}, pid ${process.pid}\n`);
});

app.listen(process.env.PORT || 3000, process.env.HOST || "127.0.0.1");
