// The page in Chromium: two people in browsers of their own, each on another instance.
// SCREENSHOTS=directory keeps what it looked like.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import puppeteer from "puppeteer-core";
import { png, startAll } from "./support.js";

const CHROMIUM = process.env.CHROMIUM || "/usr/bin/chromium";
const PICTURES = ["Lake at dawn", "Red roofs", "First snow", "Harbour", "Fern", "Dunes"];
const IMAGES = [
  "gradient:#27496d-#f6b17a",
  "gradient:#a63d40-#e9b872",
  "gradient:#dfe7ec-#8fa6b8",
  "gradient:#14213d-#2a9d8f",
  "gradient:#1b4332-#95d5b2",
  "radial-gradient:#f4e3b2-#c98b54",
];
let all, browser;

before(async () => {
  all = await startAll();
  browser = await puppeteer.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
});
after(async () => {
  await browser?.close();
  await all?.stop();
});

async function open(url, { width = 1240, height = 860, scheme = "light" } = {}) {
  const page = await (await browser.createBrowserContext()).newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(error.message));
  page.on("console", (line) => line.type() === "error" && page.wrong.push(line.text()));
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(url);
  await page.waitForSelector(".live.on");
  return page;
}

async function join_(page, name) {
  await page.click("#join");
  await page.type("#join-dialog [name=name]", name);
  await page.keyboard.press("Enter");
}

// The live connection may stand before the pictures are there: whatever is read is waited for.
async function read(page, selector, what) {
  await page.waitForSelector(selector);
  return page.$eval(selector, what);
}
const text = (page, selector) => read(page, selector, (element) => element.textContent);
const has = (page, selector, words) =>
  page.waitForFunction(
    (s, w) => document.querySelector(s)?.textContent.includes(w),
    {},
    selector,
    words,
  );

async function shoot(page, name) {
  const directory = process.env.SCREENSHOTS;
  if (!directory) return;
  // What moves comes to rest first; what moves for ever does not count.
  const isOver = () => {
    const moving = document.getAnimations().filter((one) => one.playState === "running");
    const forEver = (one) => one.effect.getTiming().iterations === Infinity;
    return moving.every(forEver) && [...document.images].every((image) => image.complete);
  };
  await page.waitForFunction(isOver);
  await page.screenshot({ path: join(directory, `${name}.png`) });
}

test("two browsers on two instances see each other's pictures and likes at once", async () => {
  const [one, two] = all.instances;
  const ann = await open(one.url);
  assert.equal(await text(ann, "#empty"), "Nothing here yet. Join and add the first picture.");
  await shoot(ann, "1-empty");
  await ann.click("#join");
  await shoot(ann, "2-join");
  await ann.click("#join-dialog .cancel");
  await join_(ann, "Ann");
  await has(ann, "#who", "Ann");

  const ben = await open(two.url, { scheme: "dark" });
  await join_(ben, "ann");
  await has(ben, "#join-dialog .wrong", "taken");
  await ben.$eval("#join-dialog [name=name]", (input) => (input.value = ""));
  await ben.type("#join-dialog [name=name]", "Ben");
  await ben.keyboard.press("Enter");
  await has(ben, "#who", "Ben");

  for (const names of [PICTURES.slice(0, 3), PICTURES.slice(3)]) {
    const paths = names.map((name) => join(all.root, `${name}.png`));
    for (const [n, path] of paths.entries()) {
      const image = IMAGES[PICTURES.indexOf(names[n])];
      execFileSync("sh", ["-c", `base64 -d > "$0"`, path], { input: png(image, "800x600") });
    }
    await ann.click("#add");
    await ann.type("#add-dialog [name=album]", "Around the lake");
    await (await ann.$("#add-dialog [name=files]")).uploadFile(...paths);
    await ann.click("#add-dialog .primary");
    await ann.waitForFunction(() => !document.querySelector("#add-dialog").open);
  }
  await ben.waitForFunction(
    (n) => document.querySelectorAll("article").length === n,
    {},
    PICTURES.length,
  );

  await ben.click("article:nth-child(2) .like");
  await ben.click("article:nth-child(4) .like");
  await has(ann, "article:nth-child(4) .like", "1");
  await has(ann, "#news", "Ben likes");
  await has(ann, "#notes", "Ben likes");
  await ann.click("article:nth-child(4) .like");
  await has(ben, "article:nth-child(4) .like", "2");
  await shoot(ann, "3-feed");
  await shoot(ben, "4-dark");

  await ann.click("article:nth-child(4) .image");
  await ann.waitForSelector("#picture-dialog[open]");
  assert.match(await ann.evaluate(() => location.pathname), /^\/pictures\/\d+$/);
  await shoot(ann, "5-picture");
  const shared = await open(await ann.evaluate(() => location.href));
  await has(shared, "#picture-dialog figcaption", "by Ann");

  const phone = await open(two.url, { width: 390, height: 844 });
  await phone.waitForSelector("article");
  const overflow = () => document.documentElement.scrollWidth - innerWidth;
  assert.ok((await phone.evaluate(overflow)) <= 0, "nothing sticks out");
  await shoot(phone, "6-phone");

  // The refused name is an answer 409, which browsers write to their console.
  const wrong = [ann, ben, shared, phone].flatMap((page) => page.wrong);
  assert.deepEqual(
    wrong.filter((line) => !line.includes("409")),
    [],
  );
});

test("a page whose instance ends says so, and has what it missed when it is back", async () => {
  const [, two] = all.instances;
  const page = await open(two.url);
  const likes = Number(await text(page, "article .like"));
  const ended = new Promise((done) => two.child.once("exit", done));
  two.child.kill("SIGTERM");
  await ended;
  await has(page, "#live", "connecting");

  const id = await read(page, "article .image", (link) => link.pathname);
  const cleo = await all.a.join("Cleo");
  assert.equal((await cleo.ask("POST", `${id}/likes`)).status, 201);
  two.child = two.start();
  await page.waitForSelector(".live.on");
  await has(page, "article .like", String(likes + 1));
});
