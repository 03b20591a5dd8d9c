/** A promise that somebody else settles; that nobody waits for it is no error. */
export class Deferred<T> {
  resolve!: (value: T) => void;
  reject!: (error: Error) => void;
  readonly promise: Promise<T>;

  constructor() {
    this.promise = new Promise<T>((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.promise.catch(() => undefined);
  }
}
