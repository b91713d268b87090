//! Single values out of settings that are programs: read off where they are written as texts, and
//! left alone where they are computed.

/// Returns the text of `key: 'value'`, or `Err` if the key has another value.
pub fn value_of<'a>(settings: &'a str, key: &str) -> Option<Result<&'a str, ()>> {
    let lines = settings.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.into_iter().find_map(|line| in_line(line, key))
}

fn in_line<'a>(line: &'a str, key: &str) -> Option<Result<&'a str, ()>> {
    let mut rest = line;
    while let Some(at) = rest.find(key) {
        let (before, after) = (&rest[..at], &rest[at + key.len()..]);
        rest = after;
        let begins = before.chars().next_back().is_none_or(|c| !is_word(c));
        let after = after.trim_start_matches(['"', '\'']).trim_start();
        let Some(value) = after.strip_prefix(':').filter(|_| begins) else { continue };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
        let text = quote.and_then(|quote| {
            let (text, after) = value[1..].split_once(quote)?;
            let ends = after.trim_start().chars().next().is_none_or(|c| ",};/)".contains(c));
            (ends && !text.contains("${")).then_some(text)
        });
        return Some(text.ok_or(()));
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == '.'
}

/// Returns whether `key: value` is in the settings, spaces aside.
pub fn says(settings: &str, key: &str, value: &str) -> bool {
    let lines = settings.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.into_iter().any(|line| {
        let plain: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        plain.contains(&format!("{key}:{value}"))
    })
}

/// Returns a path that is relative to `directory`, without `.` and `..`; `None` if it leaves the
/// root.
pub fn join(directory: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut names: Vec<&str> = Vec::new();
    for name in directory.split('/').chain(path.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop()?;
            }
            name => names.push(name),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_off_and_computed_values_are_not() {
        let settings = "export default {\n  // outDir: 'old',\n  build: { outDir: '../out' },\n\
                        \x20 root: path.join(a, 'b'),\n  'base': \"/x/\",\n}";
        assert_eq!(value_of(settings, "outDir"), Some(Ok("../out")));
        assert_eq!(value_of(settings, "root"), Some(Err(())));
        assert_eq!(value_of(settings, "base"), Some(Ok("/x/")));
        assert_eq!(value_of(settings, "dir"), None);
        assert!(says("  ssr : false,", "ssr", "false") && !says("// ssr: false", "ssr", "false"));
    }

    #[test]
    fn paths_stay_inside() {
        assert_eq!(join("src", "../dist").as_deref(), Some("dist"));
        assert_eq!(join("", "./a/b/").as_deref(), Some("a/b"));
        assert_eq!(join("src", "../../x"), None);
        assert_eq!(join("", "/tmp"), None);
    }
}
