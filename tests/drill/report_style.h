/* SPDX-License-Identifier: Apache-2.0
 *
 * The style sheet of the HTML report. Light and dark are the reader's choice; colours of steps are told apart by people
 * who see few colours, too, and every one is also named in words.
 */
#ifndef GMS_DRILL_REPORT_STYLE_H
#define GMS_DRILL_REPORT_STYLE_H

static const char drill_report_style[] =
    ":root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1b2430;--soft:#5b6777;--line:#dfe3e8;"
    "--good:#13795b;--good-back:#dff3ea;--bad:#b3261e;--bad-back:#fbe3e1;--skip:#6b5b00;--skip-back:#f6efcf;"
    "--bar:#3566b8;--s0:#8a94a3;--s1:#d1495b;--s2:#e07a2f;--s3:#c9a227;--s4:#4c956c;--s5:#2a9d9d;--s6:#3566b8;"
    "--s7:#7b4fa6;--old:#d1495b;--new:#3566b8}"
    "@media(prefers-color-scheme:dark){:root{--page:#11151b;--card:#1a2029;--text:#e6eaf0;--soft:#9aa6b6;"
    "--line:#2d3643;--good:#5fd3a8;--good-back:#12382b;--bad:#ff8a80;--bad-back:#45191a;--skip:#e2ce6a;"
    "--skip-back:#3a3413;--bar:#6d9ee8;--s0:#8791a1;--s1:#e8707f;--s2:#f0995a;--s3:#e0be4f;--s4:#6fbf92;"
    "--s5:#4fc4c4;--s6:#6d9ee8;--s7:#a982d6;--old:#e8707f;--new:#6d9ee8}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,'Segoe UI',"
    "Roboto,'Noto Sans',sans-serif}"
    "main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}"
    "header{display:flex;flex-wrap:wrap;gap:8px 16px;align-items:baseline;margin-bottom:6px}"
    "h1{font-size:26px;margin:0}h2{font-size:18px;margin:36px 0 10px}h3{font-size:15px;margin:18px 0 6px}"
    "p{margin:6px 0;max-width:80ch}.soft,small{color:var(--soft)}.lead{font-size:16px;max-width:90ch}"
    ".pill{display:inline-block;padding:1px 10px;border-radius:99px;font-weight:600;font-size:13px;white-space:nowrap}"
    ".passed{color:var(--good);background:var(--good-back)}.failed{color:var(--bad);background:var(--bad-back)}"
    ".skipped,.could-not-run{color:var(--skip);background:var(--skip-back)}"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(290px,1fr));gap:12px;margin:20px 0}"
    ".tile,.card,details{background:var(--card);border:1px solid var(--line);border-radius:10px}"
    ".tile{padding:14px 16px}.tile b{display:block;font-size:25px;line-height:1.25;font-variant-numeric:tabular-nums}"
    ".card{padding:14px 16px;overflow-x:auto}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{padding:6px 10px;text-align:right;border-top:1px solid var(--line);vertical-align:top}"
    "td.count{white-space:nowrap}td:first-child{min-width:300px}#environment td,.narrow td:first-child{min-width:0}"
    "th{color:var(--soft);font-weight:600;border-top:0;font-size:13px}"
    "td:first-child,th:first-child,td.words,th.words{text-align:left}"
    "tbody tr:target{background:var(--skip-back)}a{color:inherit;text-decoration-color:var(--soft)}"
    "details{margin:8px 0;padding:0 16px}summary{cursor:pointer;padding:10px 0;font-weight:600}"
    "details[open]{padding-bottom:14px}summary small{font-weight:400;margin-left:8px}"
    "svg{display:block;width:100%;height:auto}svg text{fill:var(--text);font-size:12px}svg .soft{fill:var(--soft)}"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:8px 0 0;padding:0;list-style:none;font-size:13px}"
    ".legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}"
    "ul.failures{color:var(--bad);padding-left:20px}"
    "dl{display:grid;grid-template-columns:minmax(120px,max-content) 1fr;gap:4px 18px;margin:0}"
    "dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}code{font-size:13px}"
    "@media print{details{break-inside:avoid}body{background:#fff}}";

#endif
