// The page and its parts, read once when the server starts.
import { readFile } from "node:fs/promises";
import { answer } from "./http.js";

const HTML = "text/html; charset=utf-8";
const FILES = [
  ["/", "index.html", HTML],
  ["/app.js", "app.js", "text/javascript; charset=utf-8"],
  ["/style.css", "style.css", "text/css; charset=utf-8"],
  ["/icon.svg", "icon.svg", "image/svg+xml"],
];
const POLICY = "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'";
// A picture has one address: a browser gets the page that shows it, every other client JSON.
const SHOWN = /^\/(pictures|albums)\/\d+$/;

const pages = new Map();
for (const [path, name, type] of FILES) {
  const bytes = await readFile(new URL(`../public/${name}`, import.meta.url));
  pages.set(path, { bytes, type });
}

export function page(request, response, url) {
  if (request.method !== "GET" && request.method !== "HEAD") return false;
  const wantsHtml = (request.headers.accept ?? "").includes("text/html");
  const found = pages.get(SHOWN.test(url.pathname) && wantsHtml ? "/" : url.pathname);
  if (!found) return false;
  const headers = { "content-type": found.type, "cache-control": "no-cache", vary: "accept" };
  answer(response, 200, found.bytes, { ...headers, "content-security-policy": POLICY });
  return true;
}
