// The view of one answer: its text while it comes, its figures, its calls of tools, and what the server knows about it.
import { codeBlock, copyButton, element, find, milliseconds, quietButton, shown } from "./common.js";
import { promptView, timeView, tokenView } from "./details.js";
import { GrowingText } from "./markdown.js";
import { curl, python } from "./snippets.js";

/** One answer of a model. Its buttons call `actions`: retry, askBeside, pick and sendResults. */
export class AnswerView {
  constructor(model, actions) {
    this.model = model;
    this.actions = actions;
    this.name = element("p", { className: "answerer muted", textContent: model }); // seen above answers beside each other
    this.thinking = element("details", { className: "thinking", hidden: true }, element("summary", { textContent: "Thinking" }));
    this.text = element("div", { className: "text" });
    this.figures = element("span", { className: "muted figures" });
    this.foot = element("footer", {}, this.figures);
    this.node = element("article", { className: "assistant", "aria-label": "Answer" }, this.name, this.thinking, this.text, this.foot);
    this.parts = {}; // growing texts
    this.written = { content: "", reasoning_content: "" };
    this.waiting = { content: "", reasoning_content: "" }; // what the next frame will show
    this.calls = [];
    this.tokens = [];
  }

  /** The message for the history, with the text so far. */
  get message() {
    const content = this.written.content + this.waiting.content;
    const thinking = this.written.reasoning_content + this.waiting.reasoning_content;
    return {
      role: "assistant",
      content: content || (this.calls.length ? null : ""),
      ...(thinking && { reasoning_content: thinking }),
      ...(this.calls.length && { tool_calls: this.calls }),
    };
  }

  /** Shows why the answer has not begun. */
  tell(news) {
    this.figures.textContent = `${news[0].toUpperCase()}${news.slice(1)}`;
  }

  begin(body) {
    this.body = body;
    this.startedAt = performance.now();
    this.figures.textContent = "Waiting for the first token";
  }

  add(event) {
    this.seenAt = performance.now();
    this.usage = event.usage ?? this.usage;
    this.timing = event.timing ?? this.timing;
    const choice = event.choices[0];
    if (!choice) return;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    for (const each of choice.logprobs?.content ?? []) this.tokens.push(each);
    const { content, reasoning_content, tool_calls } = choice.delta;
    if (!content && !reasoning_content && !tool_calls) return;
    this.lastAt = this.seenAt;
    this.firstAt ??= this.lastAt;
    this.waiting.content += content ?? "";
    this.waiting.reasoning_content += reasoning_content ?? "";
    for (const { index, id, function: added } of tool_calls ?? []) {
      const known = (this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
      known.function.name += added?.name ?? "";
      known.function.arguments += added?.arguments ?? "";
    }
    this.frame ??= requestAnimationFrame(() => this.show());
  }

  /** Shows the text that has come since the last frame; the rest of the page is left alone. */
  show() {
    this.frame = undefined;
    for (const [name, parent] of [["reasoning_content", this.thinking], ["content", this.text]]) {
      const text = this.waiting[name];
      if (!text) continue;
      parent.hidden = false;
      this.written[name] += text;
      this.waiting[name] = "";
      (this.parts[name] ??= new GrowingText(parent)).add(text);
    }
    this.figures.textContent = this.#figures();
    this.actions.followEnd();
  }

  #figures() {
    if (this.firstAt === undefined) return "No text";
    const parts = [`first token ${milliseconds(this.firstAt - this.startedAt)}`];
    const tokens = this.usage?.completion_tokens ?? this.tokens.length;
    const seconds = (this.timing ? this.timing.decode : this.lastAt - this.firstAt) / 1000;
    if (tokens > 1 && seconds > 0) parts.push(`${shown((tokens - 1) / seconds, seconds * 10 > tokens ? 1 : 0)} tokens/s`);
    if (tokens) parts.push(`${shown(tokens)} tokens`);
    if (this.finishReason === "length") parts.push("cut at max_tokens");
    if (this.ignored) parts.push(`ignored: ${this.ignored}`);
    return parts.join(" · ");
  }

  fail(error) {
    const hint = error.status === 413 ? ". Edit a message and remove a file." : "";
    const text = (error.code ? `${error.message} (${error.code})` : error.message) + hint;
    this.node.insertBefore(element("p", { className: "error", textContent: text }), this.foot);
    return text;
  }

  /** Shows a kept answer. */
  restore({ content, reasoning_content, tool_calls }) {
    this.waiting = { content: content ?? "", reasoning_content: reasoning_content ?? "" };
    this.calls = tool_calls ?? [];
    this.end();
    this.figures.textContent = this.model;
    if (this.calls.length) this.askForResults();
  }

  /** Shows the rest, and the buttons. */
  end() {
    cancelAnimationFrame(this.frame);
    this.show();
    for (const part of Object.values(this.parts)) part.end();
    const pick = quietButton("Go on with this answer", () => this.actions.pick(this));
    pick.classList.add("pick");
    const retry = quietButton("Retry", () => this.actions.retry(this));
    const further = element("span", { className: "further" }, retry, this.#besideControls());
    this.foot.append(element("span", { className: "row" }, pick, copyButton(this.text, this.written.content), further));
    if (this.body) this.#addDetails();
  }

  /** A button that asks for a second answer, and a choice of its model if there are several. */
  #besideControls() {
    const models = [...find("model").options].map(({ value }) => value);
    const options = models.map((value) => element("option", { value, textContent: value }));
    const choice = element("select", { "aria-label": "Model of the answer beside" }, ...options);
    choice.value = models.includes(this.model) ? this.model : find("model").value;
    const button = quietButton("Beside", () => this.actions.askBeside(choice.value));
    return element("span", { className: "beside" }, button, models.length > 1 ? choice : "");
  }

  #addDetails() {
    const sections = [
      ["Time", this.timing && (() => timeView(this.timing, this.seenAt - this.startedAt))],
      ["Tokens", this.tokens.length && (() => tokenView(this.tokens))],
      ["Prompt", () => promptView(this.body, this.usage?.prompt_tokens_details.cached_tokens ?? 0)],
      ["curl", () => codeBlock("curl", curl(this.body))],
      ["Python", () => codeBlock("Python", python(this.body))],
    ].filter(([, make]) => make);
    const panel = element("div", { className: "panel", hidden: true });
    const buttons = sections.map(([label, make]) => {
      const button = quietButton(label, async () => {
        const isOpen = button.getAttribute("aria-expanded") === "true";
        for (const each of buttons) each.setAttribute("aria-expanded", "false");
        panel.hidden = isOpen;
        if (isOpen) return;
        button.setAttribute("aria-expanded", "true");
        const content = await make();
        if (button.getAttribute("aria-expanded") !== "true") return; // another part was chosen meanwhile
        panel.replaceChildren(content);
        panel.scrollIntoView({ block: "nearest" });
      });
      button.setAttribute("aria-expanded", "false");
      return button;
    });
    this.node.append(element("div", { className: "row details" }, ...buttons), panel);
  }

  /** Shows the calls, with a field for each result; returns the first one. */
  askForResults() {
    this.results = this.calls.map(({ function: { name } }) =>
      element("textarea", { rows: 2, className: "source", "aria-label": `Result of ${name}`, placeholder: "Result" }),
    );
    this.form = element("fieldset", { className: "calls" });
    this.calls.forEach(({ function: { name, arguments: given } }, index) => {
      this.form.append(element("pre", { tabIndex: 0, textContent: `${name}(${given})` }), this.results[index]);
    });
    const send = quietButton("Send results", () => this.actions.sendResults(this, this.results.map((each) => each.value)));
    send.className = "primary";
    this.form.append(send);
    this.node.insertBefore(this.form, this.foot);
    return this.results[0];
  }

  /** Shows the result of a call, which cannot be changed any more; returns the function's name. */
  showResult(id, text) {
    const index = this.calls.findIndex((call) => call.id === id);
    this.results[index].value = text;
    this.form.disabled = true;
    return this.calls[index].function.name;
  }
}
