// The operator's page. No external resources: it must work on an isolated network.
#include "admin/admin_server.h"

namespace kvmend::admin {

std::string page() {
  return R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kvmend</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --dim: #888; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.2rem; margin: 0; } code { font-size: .9em; }
.dim { color: var(--dim); } .bad { color: #d33; }
table { border-collapse: collapse; width: 100%; margin-top: 1rem; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.wrap { text-align: left; } td.wrap { white-space: normal; }
.tag { border-radius: .6rem; padding: 0 .5rem; color: #fff; background: #777; }
.healthy { background: #2a7; } .suspect { background: #c80; } .failed { background: #c33; }
.probing { background: #a3c; } .connecting { background: #37b; }
.strip { display: flex; height: .5rem; width: 10rem; border-radius: .25rem; overflow: hidden; }
</style></head><body>
<h1>kvmend <code id="who"></code></h1><div id="sum" class="dim">asking…</div>
<table><thead><tr><th>session</th><th>state</th><th>last minute</th><th>MB/s</th><th>written</th>
<th>ok</th><th>failed</th><th>retries</th><th>recoveries</th><th>detect s</th><th>recover s</th>
<th>queued</th><th>epoch</th></tr></thead><tbody id="rows"></tbody></table>
<table><thead><tr><th>when</th><th>session</th><th>from → to</th><th style="text-align:left">why</th></tr></thead>
<tbody id="news"></tbody></table>
<script>
const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
const size = n => { const u = ['B','KB','MB','GB','TB']; let i = 0; while (n >= 1000 && i < 4) { n /= 1000; i++; } return n.toFixed(i ? 1 : 0) + ' ' + u[i]; };
let before = null, at = 0;
function strip(s) {
  const box = el('div', undefined, 'strip'); let edge = 0; const parts = [];
  for (const t of [...s.history].reverse()) { if (t.seconds_ago > 60) { parts.push([60 - edge, t.to]); edge = 60; break; } parts.push([t.seconds_ago - edge, t.to]); edge = t.seconds_ago; }
  if (edge < 60) parts.push([60 - edge, s.history.length ? s.history[0].from : s.state]);
  for (const [w, state] of parts.reverse()) { const d = el('div', undefined, 'tag ' + state); d.style.cssText = 'flex:' + Math.max(w, .3) + ';padding:0;border-radius:0'; d.title = state; box.append(d); }
  return box;
}
async function tick() {
  try {
    const r = await fetch('/sessions'), d = await r.json(), now = performance.now() / 1000, e = d.engine;
    document.getElementById('who').textContent = e.session_id + ' / ' + e.incarnation;
    const sum = document.getElementById('sum'); sum.className = 'dim';
    sum.textContent = `${d.sessions.length} sessions, ${e.transfers_ok} transfers done, ${e.transfers_failed} failed, ${e.recoveries} recoveries, sent ${size(e.bytes_sent)}, received ${size(e.bytes_received)}, refused frames ${e.frames_refused}`;
    const rows = document.getElementById('rows'), news = [], made = [];
    for (const s of d.sessions) {
      const tr = el('tr'), old = before && before[s.session_id];
      tr.append(el('td', s.session_id));
      const st = el('td'); st.append(el('span', s.state, 'tag ' + s.state)); st.title = s.last_error; tr.append(st);
      const td = el('td'); td.append(strip(s)); tr.append(td);
      tr.append(el('td', old ? ((s.bytes_written - old.bytes_written) / (now - at) / 1e6).toFixed(1) : ''));
      for (const v of [size(s.bytes_written), s.transfers_ok, s.transfers_failed, s.retries, s.recoveries, s.last_detect_seconds.toFixed(3), s.last_recover_seconds.toFixed(3), s.queued_transfers, s.epoch]) tr.append(el('td', v));
      if (s.pair_parked) tr.title = s.pair_parked + ' transfers wait for ' + s.pair_waits_for + ', of the same pair';
      made.push(tr);
      for (const t of s.history) news.push([t, s.session_id]);
    }
    rows.replaceChildren(...made);
    news.sort((a, b) => a[0].seconds_ago - b[0].seconds_ago);
    document.getElementById('news').replaceChildren(...news.slice(0, 30).map(([t, id]) => {
      const tr = el('tr'); tr.append(el('td', t.seconds_ago.toFixed(1) + ' s ago'), el('td', id), el('td', t.from + ' → ' + t.to), el('td', t.cause, 'wrap')); return tr; }));
    before = Object.fromEntries(d.sessions.map(s => [s.session_id, s])); at = now;
  } catch (x) { const sum = document.getElementById('sum'); sum.textContent = 'no answer: ' + x; sum.className = 'bad'; }
}
tick(); setInterval(tick, 1000);
</script></body></html>
)html";
}

}  // namespace kvmend::admin
