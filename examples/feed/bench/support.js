// What the measurements share: options, and a line about many times.
export function options(defaults) {
  const values = { ...defaults, urls: [] };
  const words = process.argv.slice(2);
  while (words.length > 0) {
    const word = words.shift();
    if (word.startsWith("--")) values[word.slice(2)] = Number(words.shift());
    else values.urls.push(word);
  }
  if (values.urls.length === 0) throw new Error("name at least one address");
  return values;
}

export function summary(what, times) {
  if (times.length === 0) return console.log(`${what}: none`);
  const sorted = [...times].sort((a, b) => a - b);
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
  const parts = [0.5, 0.9, 0.99, 1].map((part) => at(part).toFixed(1));
  console.log(
    `${what}, ms: median ${parts[0]}, p90 ${parts[1]}, p99 ${parts[2]}, most ${parts[3]}`,
  );
}
