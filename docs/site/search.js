// SPDX-License-Identifier: Apache-2.0
// Searches the text of all pages (searchWords, made by finish.py) as one types. Works from a file.
(function () {
    function found(query) {
        var words = query.toLowerCase().split(/\s+/).filter(Boolean), hits = [];
        if (!words.length) return hits;
        searchWords.forEach(function (row, number) {
            var low = row[3].toLowerCase(), titles = (row[1] + " " + row[2]).toLowerCase(), score = 0;
            for (var i = 0; i < words.length; ++i) {
                var inTitles = titles.indexOf(words[i]) >= 0;
                if (low.indexOf(words[i]) < 0 && !inTitles) return;
                var plain = words[i].replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
                var whole = new RegExp("(^|[^a-z0-9_])" + plain + "(?![a-z0-9_])").test(low);
                score += (inTitles ? 8 : 0) + (whole ? 4 : 1);
            }
            hits.push([score - (row[0].indexOf("-example") >= 0 ? 6 : 0), number]);
        });
        hits.sort(function (a, b) { return b[0] - a[0] || a[1] - b[1]; });
        return hits.map(function (hit) { return searchWords[hit[1]]; });
    }
    function text(parent, tag, words, name) {
        var element = document.createElement(tag);
        element.textContent = words;
        if (name) element.className = name;
        parent.appendChild(element);
        return element;
    }
    function show(into, query, most) {
        var hits = found(query), first = query.toLowerCase().split(/\s+/).filter(Boolean)[0];
        into.textContent = "";
        if (!first) return;
        hits.slice(0, most).forEach(function (row) {
            var at = Math.max(row[3].toLowerCase().indexOf(first), 0);
            var link = text(into, "a", "", "hit");
            link.href = row[0];
            text(link, "b", row[2] && row[2] !== row[1] ? row[2] + " \u2013 " + row[1] : row[1]);
            text(link, "span", (at > 60 ? "\u2026 " : "") + row[3].substr(Math.max(at - 60, 0), 200));
        });
        text(into, "p", hits.length ? hits.length + (hits.length === 1 ? " place" : " places") : "Nothing found");
    }
    var input = document.getElementById("words"), list = document.getElementById("words-found");
    var page = document.getElementById("words-page");
    input.addEventListener("input", function () { show(list, input.value, 12); });
    input.addEventListener("keydown", function (event) {
        if (event.key === "Escape") { input.value = ""; list.textContent = ""; }
    });
    document.addEventListener("DOMContentLoaded", function () {
        page = document.getElementById("words-page");
        if (!page) return;
        input.value = decodeURIComponent((location.search.match(/[?&]q=([^&]*)/) || ["", ""])[1].replace(/\+/g, " "));
        show(page, input.value, 200);
    });
})();
