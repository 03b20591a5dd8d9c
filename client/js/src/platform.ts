/**
 * What a platform may lack, looked for once, each with a fallback. A client needs WebSocket, and for some options fetch,
 * but no other global than those of the language, timers and the console: it runs in pages, workers, Node and React
 * Native.
 */

type Maybe<Name extends keyof typeof globalThis> = { readonly [Each in Name]?: (typeof globalThis)[Each] };

type Watch = (name: string, listener: (event: any) => void) => void;

const found = globalThis as unknown as Maybe<"crypto" | "performance" | "URL">;
// The class of React Native adds slashes.
const hasAddresses = found.URL && new found.URL("ws://a/b").href === "ws://a/b";

/** The page, and its events; a worker has a location alone, and Node neither. */
export const page = globalThis as {
  readonly location?: { readonly host: string; readonly href: string; readonly protocol: string };
  readonly document?: { readonly hidden?: boolean };
  readonly addEventListener?: Watch;
  readonly removeEventListener?: Watch;
};

/** Counts milliseconds, steadily where the platform can. */
export const clock: { now(): number } = found.performance ?? Date;

/** Calls `act` after the running code, and before events. */
export function soon(act: () => void): void {
  void Promise.resolve().then(act);
}

/** Returns a random id of so many bytes. A platform without `crypto` can only make ids that differ. */
export function randomId(count = 16): string {
  // Pages without TLS have no crypto.randomUUID.
  const none = new Uint8Array(count);
  const bytes = found.crypto?.getRandomValues(none) ?? none.map(() => Math.random() * 256);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Returns the number of bytes of a text in UTF-8. */
export function byteLength(text: string): number {
  return text.replace(/[\x80-\u07ff\ud800-\udfff]/g, "xx").replace(/[\u0800-\uffff]/g, "xxx").length;
}

/** Returns an address, which may be relative to the page, in its normal form. Throws for one that is invalid. */
export function normal(address: string): string {
  return hasAddresses ? new URL(address, page.location?.href).href : address;
}
