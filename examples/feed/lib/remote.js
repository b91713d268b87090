// Calls services of others. They may be slow: the promise waits, the process does not.
import { Refusal } from "./http.js";

const ANSWER_TIME_MAX_MS = 8000;

export async function call(url, { body, token } = {}) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(url, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_TIME_MAX_MS),
    });
    const text = await response.text();
    if (response.ok) return text ? JSON.parse(text) : {};
  } catch (error) {
    if (error.name === "TimeoutError") throw new Refusal(504, "the other service is too slow");
    throw new Refusal(502, "the other service cannot be reached");
  }
  throw new Refusal(502, `the other service answered ${response.status}`);
}
