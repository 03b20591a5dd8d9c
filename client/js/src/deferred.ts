/** Promises that are settled from outside, and waiting that an AbortSignal may end. */

/** A promise that knows whether it is awaited. */
class Watched<T> extends Promise<T> {
  /** If a caller awaits the promise as soon as it is returned, this is set two microtasks later. */
  isAwaited = false;

  // `then` returns an ordinary promise.
  static override get [Symbol.species](): PromiseConstructor {
    return Promise;
  }

  override then<A = T, B = never>(
    onValue?: ((value: T) => A | PromiseLike<A>) | null,
    onError?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.isAwaited = true;
    return super.then(onValue, onError);
  }

  /** Keeps a rejection that is not awaited silent. */
  ignore(): void {
    super.then(undefined, () => undefined);
  }
}

export class Deferred<T> {
  resolve!: (value: T) => void;
  /** Rejects; if it is not awaited, as an unhandled rejection. */
  raise!: (error: unknown) => void;
  readonly promise = new Watched<T>((resolve, raise) => Object.assign(this, { resolve, raise }));

  /** Rejects; silently if it is not awaited. */
  readonly reject = (error: unknown): void => {
    this.promise.ignore();
    this.raise(error);
  };
}

/**
 * Resolves to the first value but undefined that `look` returns; rejects when `look` throws or the signal is aborted.
 * `look` is called at once, and at each call of `subscribe`'s listener.
 */
export function whenFound<T>(
  look: () => T | undefined,
  subscribe: (fn: () => void) => () => void,
  signal: AbortSignal | undefined,
): Promise<T> {
  const found = new Deferred<T>();
  const lookAgain = () => {
    try {
      signal?.throwIfAborted();
      const value = look();
      if (value === undefined) return;
      found.resolve(value);
    } catch (error) {
      found.reject(error);
    }
    unsubscribe();
  };
  const unsubscribe = subscribe(lookAgain);
  if (signal) onAbortBefore(found.promise, signal, lookAgain);
  lookAgain();
  return found.promise;
}

/** Calls `onAbort` with the reason if a signal is aborted before the promise is settled. */
export function onAbortBefore(
  promise: Promise<unknown>,
  signal: AbortSignal,
  onAbort: (reason: unknown) => void,
): void {
  const settled = new AbortController();
  // A controller has the option `signal`.
  signal.addEventListener("abort", () => onAbort(signal.reason), settled);
  const end = () => settled.abort();
  promise.then(end, end);
}
