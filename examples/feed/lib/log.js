// One line per event, for `cortex logs`.
export function log(event, fields = {}) {
  const rest = Object.entries(fields).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  console.log([event, ...rest].join(" "));
}

export function logError(event, error) {
  log(event, { error: error.message, code: error.code });
}
