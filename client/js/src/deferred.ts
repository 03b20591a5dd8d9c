/** A promise that somebody else settles. */
export class Deferred<T> {
  resolve!: (value: T) => void;
  /** Rejects, and is heard of as uncaught when nobody waits. */
  raise!: (error: unknown) => void;
  readonly promise: Promise<T>;

  constructor() {
    this.promise = new Promise<T>((resolve, raise) => Object.assign(this, { resolve, raise }));
  }

  /** Rejects; that nobody waits is no error. */
  readonly reject = (error: unknown): void => {
    this.promise.catch(() => undefined);
    this.raise(error);
  };
}
