// The dashboard: reads snapshots from the daemon and shows them.

import { fullName, show, text } from "./tables.js";
import { drawCurves, drawMemory, quantile, swatch } from "./charts.js";

const RETRY_MS = 2000;
const ANNOUNCE_S = 10;
const RATES_S = 1;
const HISTORY_S = 61;
const CURVES_MAX = 8;

const element = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let token = null;
let paused = false;
let stream = null;
let wake = () => {};
/** Past views, the oldest first: all of the last second, and one for each second before. */
let history = [];
let announced = { at_s: 0, preemptions: null, trouble: -1 };
let shown_s = 0;

function say(id, words) {
  if (element(id).textContent !== words) element(id).textContent = words;
}

/** Waits until the page is visible, not paused, and not waiting for a token. */
async function ready() {
  while (paused || document.hidden || !element("token").hidden) {
    say("state", paused ? "Paused" : "Waiting");
    await new Promise((resolve) => (wake = resolve));
  }
}

/** Reads a stream of server-sent events until it ends. Returns whether there was an event. */
async function read(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let any = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return any;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    // Shows only the latest event if the page was slow.
    const last = events.pop();
    any ||= last !== undefined;
    if (last) take(JSON.parse(last.slice("data: ".length)));
  }
}

async function watch() {
  for (;;) {
    await ready();
    stream = new AbortController();
    try {
      const headers = token ? { Authorization: `Bearer ${token}` } : {};
      const response = await fetch("ui/events", { headers, signal: stream.signal, cache: "no-store" });
      if (response.status === 401) {
        askForToken(token ? "The token is not valid." : "");
        continue;
      }
      if (response.ok) {
        if (await read(response)) continue;
        say("state", "The daemon sends nothing; trying again");
      } else {
        const { error } = await response.json();
        say("state", `${error} (status ${response.status})`);
      }
    } catch (error) {
      if (error.name === "AbortError") continue;
      say("state", "The daemon does not answer; trying again");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function askForToken(error) {
  token = null;
  element("token").hidden = false;
  say("token-error", error);
  element("token-value").focus();
}

element("token").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token-value").value.trim();
  element("token-value").value = "";
  element("token").hidden = true;
  wake();
});

element("pause").addEventListener("click", () => {
  paused = !paused;
  element("pause").setAttribute("aria-pressed", paused);
  if (paused && stream) stream.abort();
  if (paused) say("state", "Paused");
  wake();
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden && stream) stream.abort();
  wake();
});

element("window").addEventListener("change", () => {
  const view = history[history.length - 1];
  if (view) showLatencies(view);
});

function take(view) {
  // A daemon that was restarted counts from 0.
  const last = history[history.length - 1];
  if (last && view.status.uptime_s < last.status.uptime_s) history = [];
  history.push(view);
  history = history.filter((past, at) => {
    const age = view.at_s - past.at_s;
    const next = history[at + 1];
    return age <= RATES_S + 0.5 || (age <= HISTORY_S && Math.floor(past.at_s) !== Math.floor(next.at_s));
  });
  if (calm.matches && view.at_s - shown_s < 1) return;
  shown_s = view.at_s;
  render(view);
}

/** The view of this many seconds ago, or the oldest one. */
function ago(view, seconds) {
  return history.findLast((past) => view.at_s - past.at_s >= seconds) ?? history[0];
}

/** A function that returns the rate per second of a counter; null if it is unknown. */
function rates(view) {
  const past = ago(view, RATES_S);
  const seconds = view.at_s - past.at_s;
  return (now, before) => (seconds > 0 && now != null && before != null ? Math.max(0, now - before) / seconds : null);
}

const keyOf = (row) => `${row.device ?? ""} ${row.tenant} ${row.function ?? row.instance ?? ""} ${row.class ?? ""}`;
const byKey = (rows) => new Map(rows.map((row) => [keyOf(row), row]));

function render(view) {
  const { viewer, status } = view;
  say("state", `Live, ${Math.round(1000 / view.interval_ms)} times a second`);
  const whose = viewer.sees_all_tenants ? "all tenants" : `tenant ${viewer.tenant}`;
  say("about", `${whose}, policy ${status.policy}, up for ${duration(status.uptime_s)}`);
  showDevices(view);
  showFunctions(view);
  showShares(view);
  showEvents(view);
  showLatencies(view);
  showMemory(view);
  showUsage(view);
  announce(view);
  document.body.dataset.rendered = Number(document.body.dataset.rendered ?? 0) + 1;
}

function duration(seconds) {
  const whole = Math.floor(seconds);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = Math.max(0, parts.findIndex(([unit]) => whole >= unit));
  const [unit, name] = whole > 0 ? parts[at] : parts[3];
  const below = parts[at + 1];
  const rest = below && whole > 0 ? ` ${Math.floor((whole % unit) / below[0])} ${below[1]}` : "";
  return `${Math.floor(whole / unit)} ${name}${rest}`;
}

function showDevices(view) {
  const rate = rates(view);
  const before = new Map(ago(view, RATES_S).status.devices.map((device) => [device.device, device.whole]));
  const entries = new Map(view.processes.devices.map((device) => [device.device, device]));
  const per = (device, field) => text.rate(rate(device.whole?.[field], before.get(device.device)?.[field]));
  const sum = (whole) => whole?.units.reduce((all, unit) => all + unit.busy_s, 0);
  const busy = (device) => {
    const seconds = rate(sum(device.whole), sum(before.get(device.device)));
    return seconds == null || !device.whole.units.length ? null : Math.min(1, seconds / device.whole.units.length);
  };
  const state = (device) => {
    const lost = device.lost && `lost: ${device.lost}`;
    return lost ?? (entries.get(device.device)?.unready ? "being replaced" : "ready");
  };
  const whole = (cell) => (device) => (device.whole ? cell(device.whole) : "–");
  const columns = [
    ["Device", (device) => device.device],
    ["State", state],
    ["Mode", whole((of) => (of.real_time_mode ? "real-time" : "normal"))],
    ["Busy", (device) => text.percent(busy(device)), "number"],
    ["Compute units", (device) => device.compute_units, "number"],
    ["Device queues", whole((of) => `${text.list(of.queue_depths)} of ${of.queue_capacity}`), "number"],
    ["Real-time waiting", whole((of) => of.real_time_waiting), "number"],
    ["Best-effort waiting", whole((of) => of.best_effort_waiting), "number"],
    ["Launches/s", (device) => per(device, "launches"), "number"],
    ["Evicted/s", (device) => per(device, "evicted_launches"), "number"],
    ["Padded/s", (device) => per(device, "padded_launches"), "number"],
    ["Preemptions/s", (device) => per(device, "preemptions"), "number"],
    ["Preemptions", whole((of) => text.count(of.preemptions)), "number"],
    ["Preemption p50", whole((of) => text.time(of.preemption_latency_us.p50)), "number"],
    ["Preemption p99", whole((of) => text.time(of.preemption_latency_us.p99)), "number"],
    ["Memory", whole((of) => `${text.bytes(of.memory_used_bytes)} of ${text.bytes(of.memory_bytes)}`), "number"],
  ];
  const { policy, waiting } = view.pool ?? {};
  const pool = policy ? `; ${waiting} requests wait for a device, which policy ${policy} chooses` : "";
  show("devices-table", `Devices${pool}`, columns, view.status.devices, (device) => device.device, "none");
  showLanes(view);
  const units = view.status.devices.flatMap((device) => {
    const past = before.get(device.device)?.units ?? [];
    const unit = (now, at) => ({
      device: device.device,
      unit: at,
      busy: rate(now.busy_s, past[at]?.busy_s),
      chunks: rate(now.chunks, past[at]?.chunks),
    });
    return (device.whole?.units ?? []).map(unit);
  });
  const unitColumns = [
    ["Compute unit", (row) => `${row.device} unit ${row.unit}`],
    ["Busy", (row) => text.percent(row.busy == null ? null : Math.min(1, row.busy)), "number"],
    ["Chunks of blocks/s", (row) => text.rate(row.chunks), "number"],
  ];
  show("units-table", "Compute units", unitColumns, units, (row) => `${row.device} ${row.unit}`, "not measured, or not yours to see");
}

function showLanes(view) {
  const columns = [
    ["Lane", (lane) => `${lane.device} lane ${lane.lane}`],
    ["Compute units", (lane) => text.ranges(lane.units)],
    ["Invocations", (lane) => lane.invocations, "number"],
    ["Device queues", (lane) => text.list(lane.queue_depths), "number"],
    ["State", (lane) => (lane.closing ? "closing" : "open")],
  ];
  show("lanes-table", "Lanes", columns, view.lanes, (lane) => `${lane.device} ${lane.lane}`, "none, or not yours to see");
}

function showFunctions(view) {
  const rate = rates(view);
  const before = byKey(ago(view, RATES_S).status.functions);
  const loaded = byKey(view.processes.functions);
  const per = (row, field) => text.rate(rate(row[field], before.get(keyOf(row))?.[field] ?? 0));
  const columns = [
    ["Function", fullName],
    ["Device", (row) => row.device],
    ["Class", (row) => row.class],
    ["Running", (row) => row.running, "number"],
    ["Queued", (row) => row.waiting, "number"],
    ["Done/s", (row) => per(row, "success"), "number"],
    ["Failed/s", (row) => per(row, "failure"), "number"],
    ["Refused/s", (row) => per(row, "rejected"), "number"],
    ["Preempted/s", (row) => per(row, "preemptions"), "number"],
    ["Done", (row) => text.count(row.success), "number"],
    ["Preempted", (row) => text.count(row.preemptions), "number"],
    ["Constants", (row) => loaded.get(keyOf(row))?.residency ?? "–"],
  ];
  const cut = view.left_out > 0 ? `; ${view.left_out} rows of long lists are left out` : "";
  show("functions-table", `Functions by device${cut}`, columns, view.status.functions, keyOf, "No function is loaded.");
}

function showShares(view) {
  const columns = [
    ["Instance or tenant", (row) => (row.instance ? fullName({ tenant: row.tenant, function: row.instance }) : `tenant ${row.tenant}`)],
    ["Device", (row) => `${row.device} lane ${row.lane}`],
    ["Partition", (row) => `${row.sm_partition.toFixed(0)} %`, "number"],
    ["Promised", (row) => text.percent(row.quota_request), "number"],
    ["Limit", (row) => text.percent(row.quota_limit), "number"],
    ["Received", (row) => text.percent(row.received), "number"],
    ["Beyond the limit, p99", (row) => text.time(row.p99_overshoot_us), "number"],
    ["Token", (row) => (row.has_token ? "has one" : "none")],
    ["Tokens", (row) => text.count(row.tokens), "number"],
    ["Recalled", (row) => text.count(row.recalls), "number"],
  ];
  show("shares-table", "Shares of lanes", columns, view.shares, keyOf, "No client has a share.");
}

function showEvents(view) {
  const name = (tenant, name) => (name == null ? "–" : fullName({ tenant, function: name }));
  const columns = [
    ["Time", (row) => text.clock(row.at_s)],
    ["Device", (row) => row.device],
    ["What", (row) => row.kind],
    ["Function", (row) => name(row.tenant, row.function)],
    ["Its class", (row) => row.class ?? "–"],
    ["After a request for", (row) => name(row.by_tenant, row.by_function)],
  ];
  const lost = view.events_lost > 0 ? "; some trace records were not read in time" : "";
  const rows = view.events.slice().reverse();
  show("events-table", `The last preemptions, the latest first${lost}`, columns, rows, (row) => row.number, "None since the page is open.");
}

/** The requests of the chosen period: counts by bucket, without earlier requests. */
function recent(view) {
  const seconds = Number(element("window").value);
  const before = seconds > 0 ? byKey(ago(view, seconds).latencies) : new Map();
  return view.latencies.map((row) => {
    const past = before.get(keyOf(row));
    const old = new Map(past?.counts ?? []);
    const counts = row.counts.map(([at, count]) => [at, count - (old.get(at) ?? 0)]);
    // A lower count than before: the function was loaded again.
    const again = counts.some(([, count]) => count < 0);
    const kept = again ? row.counts : counts.filter(([, count]) => count > 0);
    const total = kept.reduce((sum, [, count]) => sum + count, 0);
    return { ...row, counts: kept, total, mean_us: ((row.sum_s - (again ? 0 : past?.sum_s ?? 0)) / total) * 1e6 };
  });
}

function showLatencies(view) {
  const bounds = view.latency_bounds_us;
  const rows = recent(view).filter((row) => row.total > 0);
  const curves = rows.slice(0, CURVES_MAX);
  const at = new Map(curves.map((row, index) => [keyOf(row), index]));
  const part = (share) => (row) => {
    const bucket = quantile(row.counts, row.total, share);
    return bucket < bounds.length ? `≤ ${text.time(bounds[bucket])}` : `> ${text.time(bounds[bounds.length - 1])}`;
  };
  const columns = [
    ["Function", fullName],
    ["Class", (row) => row.class],
    ["Curve", (row) => (at.has(keyOf(row)) ? swatch(keyOf(row), at.get(keyOf(row))) : "–")],
    ["Requests", (row) => text.count(row.total), "number"],
    ["Mean", (row) => text.time(row.mean_us), "number"],
    ["p50", part(0.5), "number"],
    ["p90", part(0.9), "number"],
    ["p99", part(0.99), "number"],
    ["p99.9", part(0.999), "number"],
  ];
  show("latency-table", "Successful requests, as the daemon measures them", columns, rows, keyOf, "No request has succeeded in this time.");
  if (rows.length > 0) drawCurves(element("latency-chart"), curves, bounds);
  else element("latency-chart").replaceChildren();
}

function showMemory(view) {
  for (const device of view.processes.devices) {
    const own = view.processes.functions.filter((row) => row.device === device.device);
    const parts = own.flatMap((row) => [
      [`${fullName(row)}: constants, ${text.bytes(row.constant_device_bytes)}`, row.constant_device_bytes, `${fullName(row)} c`],
      [`${fullName(row)}: invocations, ${text.bytes(row.invocation_bytes)}`, row.invocation_bytes, `${fullName(row)} i`],
    ]);
    const known = parts.reduce((sum, [, bytes]) => sum + bytes, 0);
    const other = Math.max(0, device.memory_used_bytes - known);
    parts.push([`other use, ${text.bytes(other)}`, other, "other"]);
    const summary = `${device.device}: ${text.bytes(device.memory_used_bytes)} of ${text.bytes(device.memory_bytes)} in use`;
    drawMemory(element("memory-maps"), device.device, device.memory_bytes, parts, summary);
  }
  const columns = [
    ["Function", fullName],
    ["Device", (row) => row.device],
    ["Constants", (row) => text.bytes(row.constant_bytes), "number"],
    ["On the device", (row) => text.bytes(row.constant_device_bytes), "number"],
    ["In host memory", (row) => text.bytes(row.constant_host_bytes), "number"],
    ["Invocations", (row) => text.bytes(row.invocation_bytes), "number"],
  ];
  show("memory-table", "Device memory by function", columns, view.processes.functions, keyOf, "No function is loaded.");
}

function showUsage(view) {
  const rate = rates(view);
  const total = (rows) => {
    const sums = new Map();
    for (const row of rows) {
      const sum = sums.get(row.tenant) ?? { tenant: row.tenant, device_s: 0, gib_s: 0, done: 0, preemptions: 0 };
      sum.device_s += row.device_s;
      sum.gib_s += gibSeconds(row);
      sum.done += row.invocations.success ?? 0;
      sum.preemptions += row.preemptions;
      sums.set(row.tenant, sum);
    }
    return sums;
  };
  const now = total(view.usage.rows);
  const before = total(ago(view, RATES_S).usage.rows);
  const all = [...now.values()].reduce((sum, row) => sum + row.device_s, 0);
  const share = (row) => (all > 0 ? row.device_s / all : null);
  const tenants = [
    ["Tenant", (row) => row.tenant],
    ["Device time", (row) => text.seconds(row.device_s), "number"],
    ["Part of all", (row) => text.percent(share(row)), "number"],
    ["Device time now", (row) => text.percent(rate(row.device_s, before.get(row.tenant)?.device_s ?? 0)), "number"],
    ["Memory, GiB × s", (row) => row.gib_s.toFixed(3), "number"],
    ["Done", (row) => text.count(row.done), "number"],
    ["Preempted", (row) => text.count(row.preemptions), "number"],
  ];
  show("tenants-table", "Who is charged how much", tenants, [...now.values()], (row) => row.tenant, "Nothing was used.");
  const held = (row) => Object.values(row.memory).reduce((sum, of) => sum + of.bytes, 0);
  const failed = (row) => Object.entries(row.invocations).reduce((sum, [how, n]) => sum + (how === "success" ? 0 : n), 0);
  const columns = [
    ["Function", fullName],
    ["Device", (row) => row.device],
    ["Class", (row) => row.class],
    ["Device time", (row) => text.seconds(row.device_s), "number"],
    ["Part of all", (row) => text.percent(share(row)), "number"],
    ["Memory, GiB × s", (row) => gibSeconds(row).toFixed(3), "number"],
    ["Held now", (row) => text.bytes(held(row)), "number"],
    ["Done", (row) => text.count(row.invocations.success ?? 0), "number"],
    ["Not done", (row) => text.count(failed(row)), "number"],
    ["Preempted", (row) => text.count(row.preemptions), "number"],
    ["Cold starts", (row) => text.count(row.cold_starts), "number"],
    ["Written", (row) => text.bytes(row.written_bytes), "number"],
    ["Read", (row) => text.bytes(row.read_bytes), "number"],
  ];
  show("usage-table", "The same by function and class", columns, view.usage.rows, keyOf, "Nothing was used.");
}

function gibSeconds(row) {
  return Object.values(row.memory).reduce((sum, of) => sum + of.byte_s, 0) / 2 ** 30;
}

/** Announces preemptions to screen readers at intervals, and failures immediately. */
function announce(view) {
  const count = view.status.devices.reduce((sum, device) => sum + (device.whole?.preemptions ?? 0), 0);
  if (view.at_s - announced.at_s >= ANNOUNCE_S) {
    const since = announced.preemptions == null ? 0 : count - announced.preemptions;
    if (since > 0) say("announce", `${since} preemptions in the last ${ANNOUNCE_S} seconds`);
    announced = { ...announced, at_s: view.at_s, preemptions: count };
  }
  const lost = view.status.devices.filter((device) => device.lost).map((device) => `${device.device} is lost: ${device.lost}`);
  const trouble = view.events.filter((row) => row.kind === "hung").map((row) => `a launch on ${row.device} hangs`);
  say("trouble", [...lost, ...new Set(trouble)].join("; "));
}

watch();
