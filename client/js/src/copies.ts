/** Keeps a copied tab from going on as the client of the tab that it was copied from, where there are no locks. */

import { randomId } from "./options.js";

/** So many milliseconds pages have to answer. */
const LONGEST_ANSWER = 100;

/** "Does somebody go on as this client?", or the answer that somebody does. */
type Word = { client: string; asker: string } | { client: string; to: string };

export class Copies {
  readonly #channel: BroadcastChannel;
  readonly #client: () => string | undefined;
  readonly #id = randomId();
  #isAsking = false;
  #found: () => void = () => undefined;

  /** Answers pages that ask, by the same `key`, whether somebody goes on as what `client` returns. */
  constructor(key: string, client: () => string | undefined) {
    this.#client = client;
    this.#channel = new BroadcastChannel(key);
    this.#channel.onmessage = ({ data }) => this.#hear(data as Word);
    // Node would not end for it.
    (this.#channel as { unref?: () => void }).unref?.();
  }

  /** Tells whether another page goes on as this client; of two that ask at a time, one does. */
  async ask(): Promise<boolean> {
    const client = this.#client();
    if (client === undefined) return false;
    this.#isAsking = true;
    const isFound = await new Promise<boolean>((resolve) => {
      this.#found = () => resolve(true);
      setTimeout(() => resolve(false), LONGEST_ANSWER);
      this.#say({ client, asker: this.#id });
    });
    this.#isAsking = false;
    return isFound;
  }

  close(): void {
    this.#channel.close();
  }

  #hear(word: Word): void {
    if (word.client !== this.#client()) return;
    if ("to" in word) return word.to === this.#id ? this.#found() : undefined;
    if (this.#isAsking && word.asker > this.#id) this.#found();
    else this.#say({ client: word.client, to: word.asker });
  }

  #say(word: Word): void {
    this.#channel.postMessage(word);
  }
}
