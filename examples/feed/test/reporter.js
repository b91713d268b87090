// Prints what `node --test` found the way `./test` of this repository reads it.
const PLACE = process.env.FEED_SERVER === "twin" ? "feed::twin" : "feed";

export default async function* report(source) {
  const sums = { passed: 0, failed: 0, ignored: 0 };
  for await (const { type, data } of source) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    // A file counts by what is in it, unless it broke off before.
    const isFile = data.name.endsWith(".test.js");
    if (isFile && type === "test:pass") continue;
    const ignored = data.skip !== undefined || data.todo !== undefined;
    const failed = type === "test:fail";
    sums[ignored ? "ignored" : failed ? "failed" : "passed"] += 1;
    const seconds = (data.details.duration_ms / 1000).toFixed(3);
    const name = data.name.replaceAll(" ", "_");
    yield `test ${PLACE}::${name} ... ${failed ? "FAILED" : "ok"} <${seconds}s>\n`;
    if (failed) yield `${data.details.error?.cause?.stack ?? data.details.error}\n`;
  }
  const { passed, failed, ignored } = sums;
  const word = failed === 0 ? "ok" : "FAILED";
  yield `test result: ${word}. ${passed} passed; ${failed} failed; ${ignored} ignored\n`;
}
