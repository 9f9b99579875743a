//! What may only get better, counted: how much of a crate knows how much else of it.
//!
//! Each number of [`COUNTS`] is what there is. A change that makes one larger is refused; one that
//! makes it smaller writes the smaller number here, so that it does not grow back.

use super::{read, root, sources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What is counted, where, and how many there are.
const COUNTS: &[(Count, &str, usize)] = &[
    (Count::Files("impl Pg {"), "spirula-pg", 22),
    (Count::Files("impl Lead<'_> {"), "spirula-pg", 21),
    (Count::Files("impl OsdCore {"), "spirula-osd", 20),
    (Count::OpenFields, "spirula-pg", 204),
    (Count::OpenFields, "spirula-osd", 88),
    (Count::OpenFields, "spirula-mon", 157),
    (Count::OpenFields, "spirula-store", 223),
    (Count::RoleGuards, "spirula-pg", 6),
    (Count::Circle, "spirula-pg", 34),
    (Count::Circle, "spirula-osd", 24),
    (Count::Circle, "spirula-mon", 43),
    (Count::Circle, "spirula-store", 31),
    (Count::LongLines, "", 572),
];

/// A kind of number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Source files of the crate with a line that begins so.
    Files(&'static str),
    /// Fields that all of the crate may change: of structs that have methods of their own. (One
    /// that has none is a value, and its fields are what it is.)
    OpenFields,
    /// Places that ask which role the PG has, only to return if it is another.
    RoleGuards,
    /// Files in the largest circle of imports and of calls of methods.
    Circle,
    /// Lines of all Rust sources with more than [`WIDTH`] columns.
    LongLines,
}

/// Columns that a line has at most. A formatter keeps to it but inside of macros, attributes and
/// literals.
const WIDTH: usize = 100;

/// The sources of a crate by their module's path (`a::b`), without their tests.
fn modules(name: &str) -> BTreeMap<String, String> {
    let src = root().join("crates").join(name).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(!files.is_empty(), "{name} has no sources");
    let module = |f: &Path| {
        let below = f.strip_prefix(&src).unwrap_or(f).with_extension("");
        let parts: Vec<_> = below.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let last = parts.last().is_some_and(|p| p == "mod" || p == "lib");
        parts[..parts.len() - usize::from(last)].join("::")
    };
    files.iter().map(|f| (module(f), code_of(&read(f)))).collect()
}

/// A source without its comments and what is only tested.
fn code_of(text: &str) -> String {
    // Not where it only names a file: the code may follow.
    let tests = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at);
    let inline = |at: &usize| text[*at..].lines().nth(1).is_some_and(|l| l.ends_with('{'));
    let code = &text[..tests.into_iter().find(inline).unwrap_or(text.len())];
    let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The blocks of a source that begin, at the margin, with such a line: their names and lines.
fn blocks<'a>(code: &'a str, head: &str) -> Vec<(String, Vec<&'a str>)> {
    let mut out = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let Some(rest) = bare.strip_prefix(head) else { continue };
        // Parameters, `for` and all that stands before the name of an `impl` block's type.
        let rest = rest.strip_prefix('<').map_or(rest, |r| r.split_once("> ").map_or(r, |s| s.1));
        if !line.ends_with('{') || rest.contains(" for ") {
            continue;
        }
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let name: String = rest.trim_start().chars().take_while(|c| word(*c)).collect();
        out.push((name, lines.by_ref().take_while(|l| *l != "}").collect()));
    }
    out
}

/// The functions of these lines of a block.
fn functions<'a>(lines: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    lines.iter().filter_map(|l| {
        let l = l.strip_prefix("    ")?;
        let l = l.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let rest = l.trim_start_matches("const ").strip_prefix("fn ")?;
        Some(rest.split(['(', '<']).next().unwrap_or_default().to_owned())
    })
}

fn open_fields(modules: &BTreeMap<String, String>) -> usize {
    let impls = modules.values().flat_map(|c| blocks(c, "impl"));
    let with_methods: BTreeSet<String> =
        impls.filter(|(_, l)| functions(l).next().is_some()).map(|(name, _)| name).collect();
    let structs = modules.values().flat_map(|c| blocks(c, "struct "));
    let fields = structs.filter(|(n, _)| with_methods.contains(n)).flat_map(|(_, lines)| lines);
    fields.filter(|l| l.starts_with("    pub") && l.contains(": ")).count()
}

fn role_guards(modules: &BTreeMap<String, String>) -> usize {
    let mut found = 0;
    for code in modules.values() {
        let mut before = "";
        for line in code.lines() {
            // What is asked may stand on the line before.
            let asks = |l: &str| {
                ["Role::", "primary()", "self.lead()", "self.role"].iter().any(|w| l.contains(w))
            };
            let leaves = line.contains("else { return") || line.trim_end().ends_with("else {");
            found += usize::from(leaves && (asks(line) || asks(before) && !line.contains("let ")));
            before = line;
        }
    }
    found
}

/// What each module of a crate uses of the others: by a path, or by calling what only one of them
/// defines as a method of a type with methods in several.
fn arrows(modules: &BTreeMap<String, String>) -> BTreeMap<&str, BTreeSet<&str>> {
    let reexports = reexports(modules);
    let methods = methods(modules);
    let mut out = BTreeMap::new();
    for (module, code) in modules {
        let mut to: BTreeSet<&str> = BTreeSet::new();
        for path in paths(code, module) {
            to.extend(resolve(&path, modules, &reexports));
        }
        for (name, file) in &methods {
            let called = [format!(".{name}("), format!("::{name}(")];
            if called.iter().any(|c| code.contains(c.as_str())) {
                to.insert(file);
            }
        }
        to.remove(module.as_str());
        // The root only names its modules.
        to.remove("");
        if !module.is_empty() {
            out.insert(module.as_str(), to);
        }
    }
    out
}

/// The methods that only one module defines, of types with methods in several modules.
fn methods(modules: &BTreeMap<String, String>) -> BTreeMap<String, &str> {
    let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let mut defined: BTreeMap<String, Vec<(String, &str)>> = BTreeMap::new();
    for (module, code) in modules {
        for (name, lines) in blocks(code, "impl") {
            files.entry(name.clone()).or_default().insert(module);
            for f in functions(&lines) {
                defined.entry(f).or_default().push((name.clone(), module));
            }
        }
    }
    let only = defined.into_iter().filter_map(|(f, by)| match &by[..] {
        [(of, module)] if files[of].len() > 1 => Some((f, *module)),
        _ => None,
    });
    only.collect()
}

/// All paths of a source that begin in its crate, groups in braces taken apart.
fn paths(code: &str, module: &str) -> Vec<String> {
    let parent = module.rsplit_once("::").map_or("", |p| p.0);
    let mut out = Vec::new();
    for (begin, place) in [("crate::", ""), ("super::", parent), ("self::", module)] {
        for (at, _) in code.match_indices(begin) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
                continue;
            }
            let place = if place.is_empty() { String::new() } else { format!("{place}::") };
            expand(&code[at + begin.len()..], &place, &mut out);
        }
    }
    out
}

/// Appends the paths of which `text` begins with one, or with a group of them.
fn expand<'a>(text: &'a str, place: &str, out: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest, place, out).trim_start();
            rest = match rest.strip_prefix(',') {
                Some(r) => r.trim_start(),
                None => return rest.strip_prefix('}').unwrap_or(rest),
            };
            if let Some(r) = rest.strip_prefix('}') {
                return r;
            }
        }
    }
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let end = text.find(|c| !word(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match rest.strip_prefix("::") {
        Some(r) => expand(r, &format!("{place}{name}::"), out),
        None => {
            out.push(format!("{place}{name}"));
            let rest = rest.trim_start();
            let renamed =
                rest.strip_prefix("as ").and_then(|r| r.find(|c| !word(c)).map(|e| &r[e..]));
            renamed.unwrap_or(rest)
        }
    }
}

/// What a module gives on under its own name: (module, name) to the path that has it.
fn reexports(modules: &BTreeMap<String, String>) -> BTreeMap<(String, String), String> {
    let mut out = BTreeMap::new();
    for (module, code) in modules {
        for begin in ["pub use ", "pub(crate) use ", "pub(super) use "] {
            for (at, _) in code.match_indices(begin) {
                let mut found = Vec::new();
                expand(&code[at + begin.len()..], "", &mut found);
                for path in found {
                    let name = path.rsplit("::").next().unwrap_or_default().to_owned();
                    let path = path.strip_prefix("crate::").map_or_else(
                        || match module.as_str() {
                            "" => path.clone(),
                            m => format!("{m}::{path}"),
                        },
                        str::to_owned,
                    );
                    out.insert((module.clone(), name), path);
                }
            }
        }
    }
    out
}

/// The module that has what a path names.
fn resolve<'a>(
    path: &str,
    modules: &'a BTreeMap<String, String>,
    reexports: &BTreeMap<(String, String), String>,
) -> Option<&'a str> {
    let mut module = String::new();
    let mut parts = path.split("::");
    for part in parts.by_ref() {
        let deeper = if module.is_empty() { part.to_owned() } else { format!("{module}::{part}") };
        if modules.contains_key(&deeper) {
            module = deeper;
            continue;
        }
        // A name of this module: its own, or one that it gives on.
        return match reexports.get(&(module.clone(), part.to_owned())) {
            Some(further) if further != path => resolve(further, modules, reexports),
            _ => modules.get_key_value(&module).map(|m| m.0.as_str()),
        };
    }
    modules.get_key_value(&module).map(|m| m.0.as_str())
}

/// The largest set of modules each of which leads to each other.
fn circle<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let reached = |from: &'a str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(m) = next.pop() {
            let to = arrows.get(m).into_iter().flatten().copied();
            next.extend(to.filter(|t| seen.insert(*t)));
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|m| (*m, reached(m))).collect();
    let of = |m: &str| -> BTreeSet<&'a str> {
        let Some(to) = all.get(m) else { return BTreeSet::new() };
        to.iter().copied().filter(|t| all.get(t).is_some_and(|back| back.contains(m))).collect()
    };
    all.keys().map(|m| of(m)).max_by_key(BTreeSet::len).unwrap_or_default()
}

fn long_lines() -> usize {
    let mut files = Vec::new();
    super::everything(&root(), &mut files);
    let rust = files.iter().filter(|f| f.extension().is_some_and(|x| x == "rs"));
    rust.map(|f| read(f).lines().filter(|l| l.chars().count() > WIDTH).count()).sum()
}

#[test]
fn what_may_only_get_better_does() {
    let mut bad = Vec::new();
    for (count, name, noted) in COUNTS {
        let (found, detail) = match count {
            Count::LongLines => (long_lines(), String::new()),
            Count::Files(begin) => {
                let modules = modules(name);
                let has = |c: &String| c.lines().any(|l| l.starts_with(begin));
                (modules.values().filter(|c| has(c)).count(), String::new())
            }
            Count::OpenFields => (open_fields(&modules(name)), String::new()),
            Count::RoleGuards => (role_guards(&modules(name)), String::new()),
            Count::Circle => {
                let modules = modules(name);
                let arrows = arrows(&modules);
                let circle = circle(&arrows);
                let detail = circle.iter().copied().collect::<Vec<_>>().join(" ");
                (circle.len(), detail)
            }
        };
        if found > *noted {
            bad.push(format!("{name}: {count:?} was {noted} and is {found} {detail}"));
        } else if found < *noted {
            bad.push(format!("{name}: {count:?} fell from {noted} to {found}: write that here"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// What `docs/pg.md` says that the modules outside of the circle use.
#[test]
fn modules_outside_of_the_circle_use_what_the_page_says() {
    let page = read(&root().join("docs/pg.md"));
    let table = page.split("\n## Arrows\n").nth(1).expect("a table of arrows");
    let table = table.split("\n## ").next().unwrap_or_default();
    let names = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let mut said: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        let module = names(cells[1]).pop_first().expect("a module");
        assert!(said.insert(module, names(cells[2])).is_none(), "two rows: {row}");
    }
    let modules = modules("spirula-pg");
    let arrows = arrows(&modules);
    let circle = circle(&arrows);
    let is: BTreeMap<String, BTreeSet<String>> = arrows
        .iter()
        .filter(|(m, _)| !circle.contains(*m) && !m.ends_with("tests"))
        .map(|(m, to)| ((*m).to_owned(), to.iter().map(|t| (*t).to_owned()).collect()))
        .collect();
    let row = |(m, to): (&String, &BTreeSet<String>)| {
        let to: Vec<String> = to.iter().map(|t| format!("`{t}`")).collect();
        format!("| `{m}` | {} |", if to.is_empty() { "nothing".into() } else { to.join(", ") })
    };
    let rows: Vec<String> = is.iter().map(row).collect();
    assert!(said == is, "docs/pg.md has not these arrows:\n{}", rows.join("\n"));
}

#[test]
fn text_ends_at_the_width() {
    let mut files = Vec::new();
    super::everything(&root(), &mut files);
    let mut bad = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|x| x == "md")) {
        let mut code = false;
        for (n, line) in read(file).lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            // Tables have no other form, nor has what is quoted as it is, nor one long address.
            let exempt = code || line.trim_start().starts_with('|');
            let exempt = exempt || !line.trim_start().contains(' ');
            if !exempt && line.chars().count() > WIDTH {
                bad.push(format!("{}:{}", file.display(), n + 1));
            }
        }
    }
    assert!(bad.is_empty(), "more than {WIDTH} columns:\n{}", bad.join("\n"));
}
