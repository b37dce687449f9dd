// The page of the router: sends an image, shows who answered and why. No library, no outside resource.

const $ = (id) => document.getElementById(id);
const percent = (value) => (value >= 0.9995 ? "100 %" : `${(100 * value).toFixed(1)} %`);
let token = sessionStorage.getItem("token") ?? "";
let last = null; // the image that was asked about, to ask again in the other mode
let asked = 0; // the newest question: older answers that come late are not shown

async function call(path, options = {}) {
  const headers = { ...(options.headers ?? {}), ...(token ? { authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The router cannot be reached.");
  }
  if (response.status === 401) $("access").hidden = false;
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.error ?? `The router refused (${response.status}).`);
  }
  return response;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// -- a query ---------------------------------------------------------------------------------------------------------

async function ask(image) {
  const mine = ++asked;
  last = image;
  $("answer").setAttribute("aria-busy", "true");
  say("Asking …");
  try {
    const mode = document.querySelector("input[name=mode]:checked").value;
    const headers = { "content-type": image.type.startsWith("image/") ? image.type : "image/png" };
    const response = await call(`v1/predict?view=true&mode=${mode}`, { method: "POST", body: image, headers });
    const answer = await response.json();
    if (mine === asked) show(answer);
  } catch (error) {
    if (mine === asked) fail(error.message);
  } finally {
    if (mine === asked) $("answer").setAttribute("aria-busy", "false");
  }
  refresh();
}

function say(text, wrong = false) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
  $("status").classList.remove("heard");
}

function fail(message) {
  $("result").hidden = true;
  $("banners").replaceChildren();
  say(message, true);
}

function show(answer) {
  const banners = [];
  if (answer.novel) {
    banners.push(banner("novel", "This image resembles no client.",
      `${percent(answer.novelty)} of the clients' own images look less unusual. Do not rely on the answer below.`));
  }
  if (answer.fallback) {
    banners.push(banner("fallback", `${answer.answered_by} answered instead of ${answer.client}.`,
      `The node of ${answer.client} is down or too slow, so the next best client was asked.`));
  }
  $("banners").replaceChildren(...banners);
  $("result").hidden = false;
  $("result").classList.toggle("unsure", Boolean(answer.novel));
  $("view").hidden = !answer.view;
  if (answer.view) {
    $("view").src = answer.view;
    $("view").alt = "The query, scaled to what the model takes";
  }
  const blended = Object.keys(answer.weights ?? {});
  const said = answer.in_words ?? answer.prediction; // where clients have label names of their own: whose it is
  $("prediction").textContent = said;
  $("who").textContent = blended.length > 1 ? blended.join(", ") : answer.answered_by;
  $("meant").textContent = `${answer.client} (${percent(answer.posterior[answer.client])})`;
  $("time").textContent = `${(1000 * answer.seconds).toFixed(1)} ms`;
  bars("posterior", [...Object.entries(answer.posterior), ...(answer.others ? [["all others", answer.others]] : [])]);
  bars("classes", Object.entries(answer.probabilities));
  bars("components", answer.components.map((value, c) => [`component ${c + 1}`, value]));
  $("components-title").textContent = `Components inside ${answer.answered_by}`;
  const named = answer.in_words && blended.length === 1 ? `, in ${answer.answered_by}'s own names` : "";
  $("classes-title").textContent = `Classes${named}: P(class | image)`;
  say(`${said}, answered by ${answer.answered_by}.`);
  $("status").classList.add("heard"); // for those who listen; the others see it below
}

function banner(kind, title, text) {
  return element("div", { className: `banner ${kind}` }, element("strong", { textContent: title }), text);
}

function bars(id, pairs) {
  const highest = Math.max(...pairs.map(([, value]) => value));
  $(id).replaceChildren(...pairs.map(([name, value]) => {
    const bar = element("div", { className: value === highest ? "bar first" : "bar" },
      element("span", { className: "name", textContent: name, title: name }),
      element("progress", { max: 1, value, ariaHidden: "true" }),
      element("span", { className: "value", textContent: percent(value) }));
    bar.setAttribute("role", "listitem");
    return bar;
  }));
}

// -- ways to give an image -------------------------------------------------------------------------------------------

$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  if (file) take(file);
  $("file").value = "";
});
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.add("over");
  });
}
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  take(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) take(event.clipboardData.files[0]);
});
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => last && ask(last));
}

function take(file) {
  for (const button of $("samples").children) button.setAttribute("aria-pressed", "false");
  if (file?.type.startsWith("image/")) ask(file);
  else fail("That is not an image file.");
}

async function samples() {
  const names = await (await call("v1/samples")).json();
  $("samples-part").hidden = !names.length;
  const buttons = await Promise.all(names.map(async (name) => {
    const image = await (await call(`v1/samples/${encodeURIComponent(name)}`)).blob();
    const label = `Sample of ${name}`;
    const button = element("button", { type: "button", title: label, ariaLabel: label, ariaPressed: "false" },
      element("img", { src: URL.createObjectURL(image), alt: "" }));
    button.addEventListener("click", () => {
      for (const other of $("samples").children) other.setAttribute("aria-pressed", String(other === button));
      ask(image);
    });
    return button;
  }));
  $("samples").replaceChildren(...buttons);
}

// -- the state of the service ----------------------------------------------------------------------------------------

async function refresh() {
  try {
    const clients = await (await call("v1/clients")).json();
    $("clients").replaceChildren(...clients.map((client) => element("tr", {},
      element("th", { scope: "row", textContent: client.client }),
      element("td", { className: client.up ? "up" : "down", textContent: client.up ? "● up" : "○ down",
        title: client.trouble ?? "" }),
      element("td", { className: "number", textContent: client.rows.toLocaleString("en") }),
      element("td", { className: "number", textContent: percent(client.share) }),
      element("td", { className: "number",
        textContent: client.up && client.milliseconds !== null ? `${client.milliseconds.toFixed(0)} ms` : "–" }))));
  } catch (error) {
    $("clients").replaceChildren(element("tr", {}, element("td", { colSpan: 5, textContent: error.message })));
  }
}

async function begin() {
  try {
    const model = await (await call("v1/model")).json();
    $("access").hidden = true;
    $("model").textContent =
      `${model.algorithm}, ${model.components} components per client, version ${model.version}. ` +
      `Images are scaled to ${model.shape.slice(1).join(" × ")} pixels.`;
    await samples();
  } catch (error) {
    fail(error.message);
  }
  refresh();
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("token", token);
  say("No query yet.");
  begin();
});
setInterval(refresh, 2000);
begin();
