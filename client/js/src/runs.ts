/** The types of a thread's agents, which clients call as the methods `run:` and their names. */

import type { ArgsOf, ChunkOf, ResultOf } from "./rpc.js";

/** The result of an interrupted run: the message of the interrupt, and the agent's return value, if any. */
export interface Interruption {
  message: unknown;
  output: unknown;
  interrupted: true;
}

/** The names of the agents among the methods of a thread. */
export type AgentOf<Rpcs> = string extends keyof Rpcs
  ? string
  : keyof Rpcs extends infer Method
    ? Method extends `run:${infer Name}`
      ? Exclude<Name, "interrupt" | "stop" | "continue">
      : never
    : never;

type MethodOf<Rpcs, Name extends string> = `run:${Name}` & keyof Rpcs;

/** The input of an agent, as the arguments after its name. */
export type InputOf<Rpcs, Name extends string> = ArgsOf<Rpcs, MethodOf<Rpcs, Name>>;

type Chunk<Rpcs, Name extends string> = ChunkOf<Rpcs, MethodOf<Rpcs, Name>>;

/** The chunks of a run of an agent that streams. */
export type YieldOf<Rpcs, Name extends string> = Chunk<Rpcs, Name> | Interruption;

/** The output of a run; a list for an agent that streams. */
export type OutputOf<Rpcs, Name extends string> = [Chunk<Rpcs, Name>] extends [never]
  ? ResultOf<Rpcs, MethodOf<Rpcs, Name>> | Interruption
  : 0 extends 1 & Chunk<Rpcs, Name>
    ? any
    : YieldOf<Rpcs, Name>[];
