// @ts-check
/** A live copy of one thread: the Cloudflare Agents protocol over a WebSocket that comes back by itself. */

/** @typedef {"connecting" | "online" | "offline" | "closed"} Status */

const FIRST_DELAY = 250;
const LONGEST_DELAY = 10_000;

/** A call that was not answered because the connection was down or went down. */
export class Offline extends Error {}

/** @template State */
export class Thread {
  /** What the server said last, or what `setState` asked for since. @type {State | undefined} */
  state;
  /** @type {Status} */
  status = "connecting";
  #url;
  #handlers;
  /** @type {WebSocket | undefined} */
  #socket;
  /** @type {Map<string, {resolve: (result: any) => void, reject: (error: Error) => void}>} */
  #calls = new Map();
  #failures = 0;
  #timer = 0;

  /**
   * @param {string} kind
   * @param {string} name
   * @param {{
   *   onState?: (state: State) => void,
   *   onMessage?: (message: any) => void,
   *   onError?: (error: Error) => void,
   *   onStatus?: (status: Status, reason: string) => void,
   * }} handlers
   * @param {string} id stays the same over reconnects; whoever knows it is this connection
   */
  constructor(kind, name, handlers, id = randomId()) {
    const url = new URL(`threads/${kind}/${encodeURIComponent(name)}`, import.meta.url);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("_pk", id);
    this.#url = url;
    this.#handlers = handlers;
    addEventListener("online", () => this.#retry());
    addEventListener("offline", () => this.status === "online" && this.#disconnected());
    document.addEventListener("visibilitychange", () => document.hidden || this.#retry());
    this.#connect();
  }

  /**
   * Show `state` at once and push it; a refusal goes to `onError` and the true state comes back.
   * @param {State} state
   */
  setState(state) {
    if (this.status !== "online") return;
    this.state = state;
    this.#send({ type: "cf_agent_state", state });
    this.#handlers.onState?.(state);
  }

  /**
   * Call a method of the thread.
   * @param {string} method
   * @param {unknown[]} args
   * @returns {Promise<any>} its result; rejects with `Offline` or with what the server answered
   */
  call(method, ...args) {
    if (this.status !== "online") return Promise.reject(new Offline("not connected"));
    return new Promise((resolve, reject) => {
      const id = randomId();
      this.#calls.set(id, { resolve, reject });
      this.#send({ type: "rpc", id, method, args });
    });
  }

  /**
   * Send a message to the thread's `on_message`.
   * @param {unknown} message
   */
  send(message) {
    if (this.status === "online") this.#send(message);
  }

  // Frames

  /** @param {unknown} frame */
  #send(frame) {
    this.#socket?.send(JSON.stringify(frame));
  }

  /** @param {any} frame */
  #receive(frame) {
    switch (frame.type) {
      case "cf_agent_state":
        this.state = frame.state;
        return this.#handlers.onState?.(frame.state);
      case "cf_agent_state_error":
        return this.#handlers.onError?.(new Error(frame.error));
      case "rpc":
        return this.#settle(frame);
      case "cf_agent_identity":
      case "cf_agent_mcp_servers":
        return;
      default:
        return this.#handlers.onMessage?.(frame);
    }
  }

  /** @param {{id: string, success: boolean, result?: unknown, error?: string}} answer */
  #settle({ id, success, result, error }) {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (success) call?.resolve(result);
    else call?.reject(new Error(error));
  }

  // Connection

  #connect() {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    socket.onmessage = (event) => {
      if (this.status !== "online") this.#connected();
      this.#receive(JSON.parse(event.data));
    };
    socket.onclose = (event) => this.#disconnected(event.code, event.reason);
  }

  #connected() {
    this.#failures = 0;
    this.#setStatus("online");
  }

  /** Wait and connect again, unless the server's close code is final. */
  #disconnected(code = 1006, reason = "") {
    clearTimeout(this.#timer);
    if (this.#socket) {
      this.#socket.onmessage = this.#socket.onclose = null;
      this.#socket.close();
    }
    const final = code === 1008 || (code >= 4000 && code <= 4999);
    this.#setStatus(final ? "closed" : "offline", reason);
    for (const call of this.#calls.values()) call.reject(new Offline("the connection was lost"));
    this.#calls.clear();
    if (!final) this.#timer = setTimeout(() => this.#connect(), this.#delay());
  }

  #delay() {
    const delay = Math.min(FIRST_DELAY * 1.7 ** this.#failures++, LONGEST_DELAY);
    return delay * (0.75 + Math.random() / 2);
  }

  /** Do not wait any longer. */
  #retry() {
    if (this.status !== "offline") return;
    this.#failures = 0;
    this.#disconnected();
  }

  /** @param {Status} status */
  #setStatus(status, reason = "") {
    this.status = status;
    this.#handlers.onStatus?.(status, reason);
  }
}

/** Return 24 random hex digits; `crypto.randomUUID` is missing on plain http. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
