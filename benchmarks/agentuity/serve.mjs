// The agents of benchmarks/agents_app.py for the published Agentuity runtime: HOME=DATA_FOLDER PORT=PORT bun serve.mjs
// Without a key of its cloud it keeps threads in a SQLite file below HOME (its local provider).
import { createAgent, createApp, createRouter } from "@agentuity/runtime";
import { s } from "@agentuity/schema";

const schema = { input: s.object({ by: s.number() }), output: s.number() };

const agents = {
  none: createAgent("none", { schema, handler: async (ctx, input) => input.by + 1 }),
  put: createAgent("put", {
    schema,
    handler: async (ctx, input) => {
      await ctx.thread.state.set("last", Date.now());
      return input.by;
    },
  }),
  add: createAgent("add", {
    schema,
    handler: async (ctx, input) => {
      const n = ((await ctx.thread.state.get("n")) ?? 0) + input.by;
      await ctx.thread.state.set("n", n);
      return n;
    },
  }),
};

const router = createRouter();
for (const [name, agent] of Object.entries(agents)) {
  router.post(`/${name}`, agent.validator(), async (c) => c.json(await agent.run(c.req.valid("json"))));
}

await createApp({
  router: { path: "/run", router },
  agents: Object.values(agents),
  analytics: false,
  services: { useLocal: true },
});
