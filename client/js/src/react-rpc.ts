/** The React hooks for calling the methods of a thread. */

import { useCallback, useEffect, useRef, useState } from "react";

import type { RpcStream } from "./calls.js";
import type { ThreadClient } from "./client.js";
import { PlaitError } from "./errors.js";
import { useLatest } from "./hooks.js";
import type { AnyClient } from "./hooks.js";
import type { ArgsOf, ChunkOf, ResultOf } from "./rpc.js";

export interface RpcState<Args extends unknown[], Data> {
  /** Calls the method. It stays the same function, and its promise need not be caught. */
  call: (...args: Args) => Promise<Data>;
  /** Whether a call is under way. */
  pending: boolean;
  /** The error of the last call that ended, if it failed. */
  error: PlaitError | undefined;
  /** The result of the last call that did not fail. */
  data: Data | undefined;
}

export interface RpcOptions<State, Args extends unknown[]> {
  /**
   * Changes a draft of the state as a call with these arguments will change the state, so that it is shown at once. The
   * client needs the option `optimistic`.
   */
  optimistic?: ((draft: State, ...args: Args) => unknown) | undefined;
}

/** A method, and the state of its last call; if several are under way, the one that began last counts. */
export function useRpc<State, Rpcs, Name extends keyof Rpcs & string>(
  thread: ThreadClient<State, Rpcs, any, any>,
  method: Name,
  options?: RpcOptions<State, ArgsOf<Rpcs, Name>>,
): RpcState<ArgsOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
  const [shown, begin] = useLastCall<Shown<ResultOf<Rpcs, Name>>>(thread, method, IDLE);
  const latest = useLatest(options?.optimistic);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      const note = begin({ pending: true });
      const result = thread.callWith(method, { args, optimistic: latest.current });
      result.then(
        (data) => note({ ...IDLE, data }),
        (error: unknown) => note({ pending: false, error: asError(error) }),
      );
      return result;
    },
    [thread, method, begin, latest],
  );
  return { ...shown, call };
}

export interface StreamState<Args extends unknown[], Chunk, Data> {
  /** Calls the method; a call that is under way is cancelled. It stays the same function. */
  call: (...args: Args) => void;
  /** Cancels the call; its chunks stay. It stays the same function. */
  cancel: () => void;
  /** The chunks of the last call. */
  chunks: readonly Chunk[];
  /** Whether a call is under way. */
  pending: boolean;
  /** The error of the last call, if it has failed. */
  error: PlaitError | undefined;
  /** The final value of the last call, if it has one. */
  data: Data | undefined;
}

/** A method that streams, and its last call, which is cancelled when the component is unmounted. */
export function useStream<State, Rpcs, Name extends keyof Rpcs & string>(
  thread: ThreadClient<State, Rpcs, any, any>,
  method: Name,
): StreamState<ArgsOf<Rpcs, Name>, ChunkOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
  type Chunk = ChunkOf<Rpcs, Name>;
  type Data = ResultOf<Rpcs, Name>;
  const [shown, begin] = useLastCall<Shown<Data> & { chunks: readonly Chunk[] }>(thread, method, NOTHING);
  const running = useRef<RpcStream<Chunk, Data> | undefined>(undefined);
  const cancel = useCallback(() => {
    if (!running.current) return;
    void running.current.return();
    running.current = undefined;
    begin({ pending: false });
  }, [begin]);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      cancel();
      const note = begin({ ...NOTHING, pending: true });
      const stream = (running.current = thread.stream(method, ...args));
      const read = async () => {
        let chunks: readonly Chunk[] = [];
        for await (const chunk of stream) note({ chunks: (chunks = [...chunks, chunk]) });
        note({ pending: false, data: await stream.result });
      };
      read().catch((error: unknown) => note({ pending: false, error: asError(error) }));
    },
    [thread, method, begin, cancel],
  );
  useEffect(() => cancel, [cancel]);
  return { ...shown, call, cancel };
}

type Shown<Data> = Omit<RpcState<never, Data>, "call">;

const IDLE = { pending: false, error: undefined, data: undefined };
const NOTHING = { ...IDLE, chunks: [] };

/**
 * What is shown of the last call of a method, and a function that notes that another one begins. That returns a function
 * for what comes of the call, which does nothing after the next one has begun.
 */
function useLastCall<Shown>(thread: AnyClient, method: string, idle: Shown) {
  const [state, setState] = useState({ thread, method, shown: idle });
  const last = useRef(0);
  // The state belongs to one method; it is not shown for another.
  const find = (of: typeof state) => (of.thread === thread && of.method === method ? of.shown : idle);
  const begin = useCallback(
    (first: Partial<Shown>) => {
      const number = ++last.current;
      const note = (change: Partial<Shown>) =>
        number === last.current && setState((before) => ({ thread, method, shown: { ...find(before), ...change } }));
      note(first);
      return note;
    },
    [thread, method],
  );
  return [find(state), begin] as const;
}

function asError(error: unknown): PlaitError {
  return error instanceof PlaitError ? error : new PlaitError("error", String(error));
}
