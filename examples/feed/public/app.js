// The page: a client of the same interface as any other, and of the live feed.
const NEWS_MAX = 12;
const NOTES_MS = 15_000;
const RETRY_MIN_MS = 300;
const RETRY_MAX_MS = 10_000;
const $ = (id) => document.getElementById(id);
const bytesOf = (text) => new TextEncoder().encode(text);
const hex = (buffer) =>
  [...new Uint8Array(buffer)].map((b) => b.toString(16).padStart(2, "0")).join("");

let me = JSON.parse(localStorage.getItem("me") ?? "null");
let clockOffset = null;

// Requests

async function serverTime() {
  if (clockOffset === null) {
    const asked = Date.now();
    const { time } = await (await fetch("/time")).json();
    clockOffset = time - (asked + Date.now()) / 2;
  }
  return Math.round(Date.now() + clockOffset);
}

async function signature(method, path, time, body) {
  // Browsers offer this to pages that came encrypted or from this machine.
  if (!crypto.subtle) throw new Error("Signing needs https, or a page from localhost.");
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", bytesOf(me.key), algorithm, false, ["sign"]);
  const digest = hex(await crypto.subtle.digest("SHA-256", bytesOf(body)));
  return hex(
    await crypto.subtle.sign("HMAC", key, bytesOf(`${method}\n${path}\n${time}\n${digest}`)),
  );
}

async function ask(method, path, value, { signed = true } = {}) {
  const body = value === undefined ? "" : JSON.stringify(value);
  const headers = { accept: "application/json" };
  if (body) headers["content-type"] = "application/json";
  if (signed) {
    const time = await serverTime();
    headers["x-user"] = me.id;
    headers["x-time"] = time;
    headers["x-signature"] = await signature(method, path, time, body);
  }
  const response = await fetch(path, { method, headers, body: body || undefined });
  const answer = await response
    .json()
    .catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Pictures

const cards = new Map();
const liked = new Set(JSON.parse(localStorage.getItem("liked") ?? "[]"));

function card(picture) {
  const article = $("card").content.cloneNode(true).firstElementChild;
  const link = article.querySelector(".image");
  link.href = `/pictures/${picture.id}`;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", link.href);
    show(picture);
  });
  const image = article.querySelector("img");
  image.src = picture.small;
  image.alt = picture.title;
  article.querySelector("h3").textContent = picture.title;
  article.querySelector("p").textContent = `${picture.owner} · ${picture.albumTitle}`;
  const button = article.querySelector(".like");
  button.addEventListener("click", () => like(picture.id));
  cards.set(picture.id, { article, button, picture });
  count(picture.id, picture.likes);
  return article;
}

function count(id, likes) {
  const found = cards.get(id);
  if (!found) return;
  // News may overtake an answer: a count never goes back.
  found.picture.likes = Math.max(found.picture.likes, likes);
  found.button.querySelector("span").textContent = found.picture.likes;
  found.button.classList.toggle("liked", liked.has(id));
  found.button.setAttribute("aria-pressed", liked.has(id));
}

function beat(id) {
  const button = cards.get(id)?.button;
  if (!button) return;
  button.classList.remove("beat");
  requestAnimationFrame(() => button.classList.add("beat"));
}

async function like(id) {
  if (!me) return open("join-dialog");
  try {
    const { likes } = await ask("POST", `/pictures/${id}/likes`);
    liked.add(id);
    localStorage.setItem("liked", JSON.stringify([...liked]));
    count(id, likes);
    beat(id);
  } catch (error) {
    tell(error.message);
  }
}

function show(picture) {
  const dialog = $("picture-dialog");
  dialog.querySelector("img").src = picture.full;
  dialog.querySelector("img").alt = picture.title;
  dialog.querySelector("figcaption").textContent = `${picture.title}, by ${picture.owner}`;
  if (!dialog.open) dialog.showModal();
}
$("picture-dialog").addEventListener("close", () => history.pushState(null, "", "/"));

async function load(before) {
  const { pictures } = await ask(
    "GET",
    before ? `/pictures?before=${before}` : "/pictures",
    undefined,
    { signed: false },
  );
  if (!before) {
    cards.clear();
    $("pictures").replaceChildren();
  }
  for (const picture of pictures) $("pictures").append(card(picture));
  $("more").hidden = pictures.length < 24;
  $("empty").hidden = cards.size > 0;
}
$("more").addEventListener("click", () => load([...cards.keys()].at(-1)));

// News

function tell(text, faint = "") {
  const item = document.createElement("li");
  item.textContent = text;
  if (faint) item.append(Object.assign(document.createElement("small"), { textContent: faint }));
  $("news").prepend(item);
  while ($("news").children.length > NEWS_MAX) $("news").lastElementChild.remove();
  $("quiet").hidden = true;
}

function hear(news) {
  const [, , id, what] = news.channel?.split("/") ?? [];
  const time = new Date(news.at).toLocaleTimeString();
  if (what === "likes") {
    count(id, news.likes);
    beat(id);
    tell(`${news.user} likes “${news.title}”`, `${time}, from ${news.instance}`);
    if (cards.get(id)?.picture.owner === me?.name) setTimeout(loadMine, 300);
  }
  if (what === "added" && !cards.has(id)) {
    const made = card(news.picture);
    made.classList.add("new");
    $("pictures").prepend(made);
    $("empty").hidden = true;
    const { owner, title } = news.picture;
    tell(`${owner} added “${title}”`, `${time}, from ${news.instance}`);
  }
}

let retryMs = RETRY_MIN_MS;
function listen() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(
    `${scheme}://${location.host}/live?feed=/picture/*/likes&feed=/picture/*/added`,
  );
  socket.addEventListener("message", ({ data }) => {
    const news = JSON.parse(data);
    if (!news.ready) return hear(news);
    retryMs = RETRY_MIN_MS;
    $("live").textContent = "live";
    $("live").classList.add("on");
    // What happened while nobody listened is in the list.
    load().catch((error) => tell(error.message));
  });
  socket.addEventListener("close", () => {
    $("live").textContent = "connecting";
    $("live").classList.remove("on");
    setTimeout(listen, retryMs * (0.5 + Math.random()));
    retryMs = Math.min(RETRY_MAX_MS, retryMs * 2);
  });
}

// The person

async function loadMine() {
  $("join").hidden = Boolean(me);
  $("add").hidden = $("mine").hidden = $("who").hidden = !me;
  if (!me) return;
  $("who").textContent = me.name;
  const [{ albums }, { notifications }] = await Promise.all([
    ask("GET", "/me"),
    ask("GET", "/notifications"),
  ]);
  $("notes").replaceChildren(
    ...notifications
      .slice(0, 5)
      .map(({ text }) => Object.assign(document.createElement("li"), { textContent: text })),
  );
  $("no-notes").hidden = notifications.length > 0;
  $("albums").replaceChildren(...albums.map(albumLine));
  $("no-albums").hidden = albums.length > 0;
  $("album-names").replaceChildren(
    ...albums.map(({ title }) => Object.assign(document.createElement("option"), { value: title })),
  );
  me.albums = albums;
}

function albumLine({ id, title }) {
  const line = document.createElement("li");
  const remove = Object.assign(document.createElement("button"), { textContent: "Delete" });
  remove.addEventListener("click", async () => {
    if (!confirm(`Delete “${title}” and its pictures?`)) return;
    await ask("DELETE", `/albums/${id}`).catch((error) => tell(error.message));
    await Promise.all([load(), loadMine()]);
  });
  line.append(title, remove);
  return line;
}

function open(id) {
  $(id).querySelector(".wrong").textContent = "";
  $(id).showModal();
}

// A dialog stays open until what it asked for is done, and says what is wrong.
function form(id, act) {
  const dialog = $(id);
  const element = dialog.querySelector("form");
  element.querySelector(".cancel").addEventListener("click", () => dialog.close());
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    event.submitter.disabled = true;
    try {
      await act(element);
      element.reset();
      dialog.close();
    } catch (error) {
      dialog.querySelector(".wrong").textContent = error.message;
    }
    event.submitter.disabled = false;
  });
}

form("join-dialog", async ({ elements }) => {
  const value = { name: elements.name.value };
  if (elements.email.value) value.email = elements.email.value;
  me = await ask("POST", "/users", value, { signed: false });
  localStorage.setItem("me", JSON.stringify(me));
  await loadMine();
});

form("add-dialog", async ({ elements }) => {
  const files = [...elements.files.files].slice(0, 4);
  const pictures = await Promise.all(
    files.map(async (file) => ({
      title: file.name.replace(/\.\w+$/, ""),
      image: await base64(file),
    })),
  );
  const title = elements.album.value.trim();
  const known = me.albums.find((album) => album.title === title);
  const { id } = known ?? (await ask("POST", "/albums", { title }));
  await ask("POST", `/albums/${id}/pictures`, { pictures });
  await loadMine();
});

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1]);
    reader.onerror = () => reject(new Error("This file cannot be read."));
    reader.readAsDataURL(file);
  });
}

$("join").addEventListener("click", () => open("join-dialog"));
$("add").addEventListener("click", () => open("add-dialog"));

listen();
loadMine().catch((error) => tell(error.message));
// What the feed does not carry, as it concerns one person alone.
setInterval(() => loadMine().catch(() => {}), NOTES_MS);
const shown = location.pathname.match(/^\/pictures\/\d+$/);
if (shown)
  ask("GET", shown[0], undefined, { signed: false }).then(show, (error) => tell(error.message));
