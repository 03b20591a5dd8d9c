/** Waiting that an AbortSignal may end; leaves no listener behind. */

import { Deferred } from "./deferred.js";

/** Resolves as soon as `look`, which is asked at once and whenever `subscribe` tells, finds something or throws. */
export function whenFound<T>(
  look: () => T | undefined,
  subscribe: (fn: () => void) => () => void,
  signal: AbortSignal | undefined,
): Promise<T> {
  const found = new Deferred<T>();
  const lookAgain = () => {
    try {
      if (signal?.aborted) throw signal.reason;
      const value = look();
      if (value === undefined) return;
      found.resolve(value);
    } catch (error) {
      found.reject(error);
    }
    unsubscribe();
    signal?.removeEventListener("abort", lookAgain);
  };
  const unsubscribe = subscribe(lookAgain);
  signal?.addEventListener("abort", lookAgain);
  lookAgain();
  return found.promise;
}

/** Tells `onAbort` the reason when a signal is aborted before the answer is there. */
export function untilSettled(signal: AbortSignal, answer: Promise<unknown>, onAbort: (reason: unknown) => void): void {
  const abort = () => onAbort(signal.reason);
  const settled = () => signal.removeEventListener("abort", abort);
  signal.addEventListener("abort", abort);
  answer.then(settled, settled);
}
