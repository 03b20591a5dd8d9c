/** The React hooks for calling the methods of a thread. */

import { useCallback, useEffect, useRef, useState } from "react";

import type { RpcStream } from "./calls.js";
import type { ThreadClient } from "./client.js";
import { PlaitError } from "./errors.js";
import { useLatest } from "./hooks.js";
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
  options: RpcOptions<State, ArgsOf<Rpcs, Name>> = {},
): RpcState<ArgsOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
  type Data = ResultOf<Rpcs, Name>;
  // The state belongs to one method; it is not shown for another.
  const [state, setState] = useState({ ...IDLE, thread, method } as Omit<RpcState<never, Data>, "call"> & {
    thread: typeof thread;
    method: Name;
  });
  const last = useRef(0);
  const latest = useLatest(options.optimistic);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      const number = ++last.current;
      const end = (ended: Partial<typeof state>) =>
        number === last.current && setState((before) => ({ ...before, pending: false, error: undefined, ...ended }));
      setState((before) => {
        const isSame = before.thread === thread && before.method === method;
        return { ...(isSame ? before : IDLE), thread, method, pending: true };
      });
      const recipe = latest.current;
      const optimistic = recipe && ((draft: State) => recipe(draft, ...args));
      const result = thread.callWith(method, { args, optimistic });
      result.then(
        (data) => end({ data }),
        (error: unknown) => end({ error: asError(error) }),
      );
      return result;
    },
    [thread, method, latest],
  );
  const { pending, error, data } = state.thread === thread && state.method === method ? state : IDLE;
  return { pending, error, data, call };
}

const IDLE = { pending: false, error: undefined, data: undefined };

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
  const [state, setState] = useState({ ...NOTHING, thread, method } as Omit<
    StreamState<never, Chunk, ResultOf<Rpcs, Name>>,
    "call" | "cancel"
  > & { thread: typeof thread; method: Name });
  const running = useRef<RpcStream<Chunk, ResultOf<Rpcs, Name>> | undefined>(undefined);
  const stop = useCallback(() => {
    void running.current?.return();
    running.current = undefined;
  }, []);
  const cancel = useCallback(() => {
    stop();
    setState((before) => ({ ...before, pending: false }));
  }, [stop]);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      stop();
      const stream = thread.stream(method, ...args);
      running.current = stream;
      setState({ ...NOTHING, thread, method, pending: true });
      const show = (next: (chunks: readonly Chunk[]) => Partial<typeof state>) =>
        running.current === stream && setState((before) => ({ ...before, ...next(before.chunks) }));
      const read = async () => {
        for await (const chunk of stream) show((chunks) => ({ chunks: [...chunks, chunk] }));
        const data = await stream.result;
        show(() => ({ pending: false, data }));
      };
      read().catch((error: unknown) => show(() => ({ pending: false, error: asError(error) })));
    },
    [thread, method, stop],
  );
  useEffect(() => stop, [thread, method, stop]);
  const { chunks, pending, error, data } = state.thread === thread && state.method === method ? state : NOTHING;
  return { call, cancel, chunks, pending, error, data };
}

const NOTHING = { ...IDLE, chunks: [] };

function asError(error: unknown): PlaitError {
  return error instanceof PlaitError ? error : new PlaitError("error", String(error));
}
