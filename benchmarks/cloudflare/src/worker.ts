// The same agent as benchmarks/agents.py, for the published SDK.
import { Agent, callable, routeAgentRequest, type StreamingResponse } from "agents";

type Env = { BenchAgent: DurableObjectNamespace<BenchAgent> };
type Counter = { n: number };

export class BenchAgent extends Agent<Env, Counter> {
  initialState: Counter = { n: 0 };

  @callable()
  echo(value: number): number {
    return value;
  }

  @callable()
  add(by: number): number {
    this.setState({ ...this.state, n: this.state.n + by });
    return this.state.n;
  }

  @callable({ streaming: true })
  count(stream: StreamingResponse, upto: number): void {
    for (let i = 0; i < upto; i++) stream.send(i);
    stream.end();
  }

  @callable({ streaming: true })
  generate(stream: StreamingResponse, upto: number): void {
    this.count(stream, upto);
  }

  async onRequest(request: Request): Promise<Response> {
    if (request.method === "PUT") this.setState(await request.json<Counter>());
    return Response.json(this.state);
  }
}

export default {
  async fetch(request: Request, env: Env): Promise<Response> {
    return (await routeAgentRequest(request, env)) ?? new Response("not found", { status: 404 });
  },
};
