/** A promise that somebody else settles, and that tells whether anybody waits for it. */

class Watched<T> extends Promise<T> {
  isAwaited = false;

  // What comes of `then` is an ordinary promise.
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

  /** That nobody waits is no error. */
  ignore(): void {
    super.then(undefined, () => undefined);
  }
}

export class Deferred<T> {
  resolve!: (value: T) => void;
  /** Rejects, and is heard of as uncaught when nobody waits. */
  raise!: (error: unknown) => void;
  readonly #promise: Watched<T>;

  constructor() {
    this.#promise = new Watched<T>((resolve, raise) => Object.assign(this, { resolve, raise }));
  }

  get promise(): Promise<T> {
    return this.#promise;
  }

  /** Whether somebody waits; who awaits it in the same go as it was returned does so two microtasks later. */
  get isAwaited(): boolean {
    return this.#promise.isAwaited;
  }

  /** Rejects; that nobody waits is no error. */
  readonly reject = (error: unknown): void => {
    this.#promise.ignore();
    this.raise(error);
  };
}
