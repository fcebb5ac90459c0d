/* Training as something that can be started and paused from outside. It runs in a worker, which is made of the page's
   own scripts, so that a page without a server can have one; or, where there is none, beside the page in slices of a
   few milliseconds. Both ways it is told and tells the same messages.

   told    {start: {growth, seed, steps}}   {run: steps}   {pause}
   tells   {kind: "ready", fast}   {kind: "look", step, loss, heads, numbers}   {kind: "paused", step} */
"use strict";

const Engine = (() => {
  const PARTS = ["packed", "matmul", "pieces", "network", "training", "roles", "engine"];
  const LOOK = 20; // steps between looks
  const SLICE = 25; // milliseconds

  function create(tell) {
    let run, until;
    let life = null; // what there is to do before the next pause; null while paused
    const { port1, port2 } = new MessageChannel(); // a timer would wait for 4 ms each time
    port1.onmessage = slice;

    function* look() {
      const heads = yield* Roles.heads(run.model, run.held_out, run.rules);
      const loss = yield* Training.held_out_loss(run);
      tell({ kind: "look", step: run.step, loss, heads, numbers: Network.numbers_of(run.model) });
    }

    /* It stops only between two steps. */
    function* live(is_new) {
      if (is_new) yield* look();
      while (run.step < Math.min(until, run.recipe.steps)) {
        yield* Training.step(run);
        if (run.step % LOOK === 0) yield* look();
      }
      tell({ kind: "paused", step: run.step });
    }

    function slice() {
      const end = performance.now() + SLICE;
      while (life && performance.now() < end) if (life.next().done) life = null;
      if (life) port2.postMessage(null);
    }

    /* Takes the place of what was being done; the message that calls the next slice may be on its way already. */
    function go(next) {
      if (!life) port2.postMessage(null);
      life = next;
    }

    function start({ growth, seed, steps }) {
      const { recipe, rules, gold, pad } = growth;
      run = Training.start(recipe, Training.unpack(growth.train, pad), seed);
      run.held_out = Roles.prepare(Training.unpack(growth.held_out, pad), gold, rules);
      run.rules = rules;
      until = steps;
      tell({ kind: "ready", fast: run.model.space.fast });
      go(live(true));
    }

    function receive(told) {
      if ("start" in told) start(told.start);
      if ("pause" in told) until = 0;
      if ("run" in told) {
        until = told.run;
        if (!life) go(live(false));
      }
    }

    return { receive };
  }

  /* The worker's own side. */
  function listen() {
    const { receive } = create((told) => postMessage(told));
    onmessage = ({ data }) => receive(data);
  }

  /* An engine in a worker if there can be one -> send(message). scripts: name -> text of the page's own scripts.
     A worker that fails is replaced by an engine beside the page, which is told everything once more. */
  function open(scripts, tell) {
    const sent = []; // since the last start
    let receive;
    function beside() {
      ({ receive } = create(tell));
      sent.forEach(receive);
    }
    try {
      const text = PARTS.map((part) => scripts.get(`model/${part}.js`)).join("\n");
      const worker = new Worker(URL.createObjectURL(new Blob([text, "Engine.listen();"], { type: "text/javascript" })));
      worker.onmessage = ({ data }) => tell(data);
      worker.onerror = beside;
      receive = (message) => worker.postMessage(message);
    } catch {
      beside();
    }
    return (message) => {
      if ("start" in message) sent.length = 0;
      sent.push(message);
      receive(message);
    };
  }

  return { listen, open };
})();
