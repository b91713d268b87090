// An actor: a mailbox, and behind it one behaviour that takes one message at a time. Whoever tells
// it something goes on at once. What goes wrong with one message is logged and ends there.
import { log, logError } from "./log.js";

// Beyond this something downstream stands still; messages are dropped rather than memory filled.
const MAILBOX_MAX = 10_000;

export class Actor {
  #mailbox = [];
  #running = null;

  constructor(name, receive) {
    this.name = name;
    this.receive = receive;
  }

  tell(message) {
    if (this.#mailbox.length >= MAILBOX_MAX) {
      log("actor.mailbox_full", { actor: this.name });
      return false;
    }
    this.#mailbox.push(message);
    this.#running ??= this.#run();
    return true;
  }

  // Resolves when the mailbox is empty, for an orderly end.
  async idle() {
    while (this.#running) await this.#running;
  }

  async #run() {
    // Never inside `tell`: the teller goes on first.
    await null;
    while (this.#mailbox.length > 0) {
      const messages = this.#mailbox;
      this.#mailbox = [];
      for (const message of messages) {
        try {
          await this.receive(message);
        } catch (error) {
          logError(`actor.${this.name}_failed`, error);
        }
      }
    }
    this.#running = null;
  }
}
