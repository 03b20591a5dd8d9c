/** Optimistic calls, as an option of a client: what a call will do is shown before the server has done it. */

import type { CallOptions } from "./calls.js";
import { edited } from "./draft.js";
import type { InitialState } from "./early.js";
import type { Edits } from "./edits.js";
import { raise } from "./errors.js";
import { freeze, plain, share } from "./json.js";
import type { Document, Json } from "./json.js";
import type { Link } from "./link.js";
import type { OptimisticPart } from "./parts.js";
import type { Op } from "./protocol.js";
import type { Session } from "./session.js";

type Recipe = (draft: any) => unknown;

/** What a call shows. */
interface Layer {
  readonly recipe: Recipe;
  /** The ref of the call, once it has one. */
  ref?: number;
  /** The version of its first change, once the server has told it. */
  madeAt?: number;
  /** Whether the recipe has succeeded for a state. */
  hasRun: boolean;
}

/** What calls show on top of the session's state, until their first changes are in that. */
export class Layers {
  /** Whether the session's own state is shown, for changes that are made on that. */
  isAside = false;
  readonly #session: Session;
  #all: readonly Layer[] = [];
  #last: { readonly under: Json; readonly layers: readonly Layer[]; readonly shown: Json } | undefined;

  constructor(session: Session) {
    this.#session = session;
    // All who hold the session call, receive frames and take events by these methods.
    const { call, receive, takeEvents } = session;
    session.call = (method, args, kwargs, more) => {
      const layer = this.#all.find((each) => (each as object) === more);
      const ref = call.call(session, method, args, kwargs, layer ? { optimistic: true } : more);
      if (layer) layer.ref = ref;
      return ref;
    };
    session.receive = (frame) => {
      if (frame.type === "made") {
        const layer = this.#find(frame.ref);
        if (layer) layer.madeAt = frame.version;
      }
      receive.call(session, frame);
    };
    session.takeEvents = () => {
      const events = takeEvents.call(session);
      for (const event of events)
        if ("ref" in event && !("done" in event && !event.done)) this.end(this.#find(event.ref));
      return events;
    };
  }

  /** Adds what a call shows. Throws the error of the recipe for the `shown` state, if there is one. */
  add(recipe: Recipe, shown: Document): Layer {
    const layer: Layer = { recipe, hasRun: false };
    if (shown !== undefined) run(layer, shown);
    this.#all = [...this.#all, layer];
    return layer;
  }

  /** Ends what a call shows; tells whether it was shown. */
  end(layer: Layer | undefined): boolean {
    const rest = this.#all.filter((each) => each !== layer);
    const isShown = rest.length < this.#all.length;
    if (isShown) this.#all = rest;
    return isShown;
  }

  /** Returns the session's state as it is shown. */
  show(under: Document): Document {
    const version = this.#session.version as number;
    for (const layer of this.#all) if ((layer.madeAt ?? Infinity) <= version) this.end(layer);
    if (this.#all.length === 0) this.#last = undefined;
    if (this.#all.length === 0 || this.isAside || under === undefined) return under;
    if (this.#last?.under !== under || this.#last.layers !== this.#all) {
      const shown = this.#all.reduce((over, layer) => this.#runOn(over, layer), under);
      this.#last = { under, layers: this.#all, shown: freeze(share(this.#last?.shown ?? under, shown)) };
    }
    return this.#last.shown;
  }

  #find(ref: number | null | undefined): Layer | undefined {
    return this.#all.find((each) => each.ref !== undefined && each.ref === ref);
  }

  /** Returns a state with what a call shows on it: nothing if the recipe throws. */
  #runOn(state: Json, layer: Layer): Json {
    try {
      return run(layer, state);
    } catch (error) {
      // Others may have changed what the recipe needs; without a state for which it has succeeded, it is wrong.
      if (!layer.hasRun && this.end(layer)) raise(error);
      return state;
    }
  }
}

function run(layer: Layer, state: Json): Json {
  const next = freeze(plain(edited(state, layer.recipe), state));
  layer.hasRun = true;
  return next;
}

export const optimistic: OptimisticPart = {
  put(client, link, _, edits, Base) {
    if (known.has(client)) return;
    known.add(client);
    show(client as Methods, link as Link, edits as Edits, Base as typeof InitialState);
  },
};

function show(client: Methods, link: Link, edits: Edits, Base: typeof InitialState): void {
  const { session } = link;
  const layers = new Layers(session);
  // The object's class is changed, and the object is not wrapped: all who hold it hold this one, too.
  Object.setPrototypeOf(edits, extend(edits.constructor as typeof Edits, session, layers).prototype as object);
  const { push } = session;
  session.push = (ops: readonly Op[]) => {
    const { shown } = edits;
    const isShown = shown === session.shown;
    layers.isAside = false;
    // The server does not know what calls show.
    return push.call(session, isShown ? ops : new Base(shown).edit(ops)(session.shown, session.keys));
  };
  wrap(client, link, layers, edits);
}

const known = new WeakSet<object>();

function extend(Base: typeof Edits, session: Session, layers: Layers): typeof Edits {
  return class extends Base {
    override get shown(): Document {
      // Edits of the initial state are made on that alone.
      return super.isEarly ? super.shown : layers.show(super.shown);
    }

    override get isEarly(): boolean {
      return super.isEarly || this.shown !== session.shown;
    }
  };
}

/** The methods of a client that this part replaces. */
interface Methods extends Record<(typeof UNDO)[number], (pointer?: string) => unknown> {
  call(method: string, ...args: unknown[]): Promise<unknown>;
  callWith(method: string, options?: CallOptions): Promise<unknown>;
}

/** The history knows the changes of the session's state, without what calls show. */
const UNDO = ["undo", "redo", "canUndo", "canRedo"] as const;

function wrap(client: Methods, link: Link, layers: Layers, edits: Edits): void {
  const { call, callWith } = client;
  client.callWith = (method, { optimistic: recipe, ...options } = {}) => {
    if (!recipe) return callWith(method, options);
    let layer: Layer;
    try {
      layer = layers.add((draft) => recipe(draft, ...(options.args ?? [])), edits.shown);
    } catch (error) {
      return Promise.reject(error as Error);
    }
    const result = callWith(method, { ...options, optimistic: layer as never });
    // A call that was not sent has no event.
    const ended = result.finally(() => layers.end(layer) && link.pump());
    result.catch(() => {
      // As without a recipe, an error that the page has caused need not be caught.
      if (options.signal?.aborted || (link.status === "closed" && !link.error)) ended.catch(() => undefined);
    });
    link.pump();
    return ended;
  };
  client.call = (method, ...args) => {
    const recipe = (args.at(-1) as CallOptions | null | undefined)?.optimistic;
    return typeof recipe === "function"
      ? client.callWith(method, { args: args.slice(0, -1), optimistic: recipe })
      : call(method, ...args);
  };
  for (const name of UNDO) {
    const method = client[name];
    client[name] = (pointer) => {
      layers.isAside = true;
      try {
        return method(pointer);
      } finally {
        layers.isAside = false;
      }
    };
  }
}
