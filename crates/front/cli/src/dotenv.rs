//! Variables in a file, in the form of `.env` files: `NAME=value`, quotes, comments, `export`.
//! Nothing is replaced in values, since a secret may hold a `$`. Messages never show a value.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// Parses the variables. The last value of a name counts, as in other programs that read such
/// files.
pub fn parse(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    let mut rest = text.trim_start_matches('\u{feff}');
    let mut line = 1;
    while !rest.is_empty() {
        let (name, after) = match next_name(rest, line)? {
            DotenvLine::Name(name, after) => (name, after),
            DotenvLine::Nothing(after) => {
                line += 1;
                rest = after;
                continue;
            }
        };
        let (value, after) = value(after).with_context(|| format!("line {line}: {name}"))?;
        line += rest[..rest.len() - after.len()].matches('\n').count();
        variables.insert(name.to_owned(), value);
        rest = after;
    }
    Ok(variables)
}

enum DotenvLine<'a> {
    /// A variable's name, and what follows `=`.
    Name(&'a str, &'a str),
    /// A line that sets nothing, and what follows it.
    Nothing(&'a str),
}

fn next_name(text: &str, number: usize) -> anyhow::Result<DotenvLine<'_>> {
    let (line, after) = text.split_once('\n').unwrap_or((text, ""));
    let trimmed = line.trim();
    if trimmed.is_empty() || trimmed.starts_with('#') {
        return Ok(DotenvLine::Nothing(after));
    }
    let start = text.trim_start();
    let start = match start.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        _ => start,
    };
    let end = start.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(start.len());
    let (name, rest) = start.split_at(end);
    match rest.trim_start_matches([' ', '\t']).strip_prefix('=') {
        Some(rest) if recipe_core::manifest::is_variable_name(name) => {
            Ok(DotenvLine::Name(name, rest))
        }
        // The line is not shown, as it may be a secret that went astray.
        _ => bail!("line {number} sets nothing: write NAME=value, and '#' before a comment"),
    }
}

/// Returns the value, and what follows its line.
fn value(text: &str) -> anyhow::Result<(String, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\'' | '`'));
    let Some(quote) = quote else {
        let (line, after) = text.split_once('\n').unwrap_or((text, ""));
        return Ok((plain(line).to_owned(), after));
    };
    let inner = &text[1..];
    let Some(end) = closing(inner, quote) else {
        bail!("the quote {quote} that begins its value does not end");
    };
    let (value, rest) = (&inner[..end], &inner[end + 1..]);
    let (behind, after) = rest.split_once('\n').unwrap_or((rest, ""));
    if !behind.trim().is_empty() && !behind.trim_start().starts_with('#') {
        let within =
            if quote == '"' { "write \\\" within it" } else { "use other quotes around it" };
        bail!("something follows the quote {quote} that ends its value: {within}");
    }
    // A file of another system may end its lines with `\r\n`; the value is the same.
    let value = value.replace("\r\n", "\n");
    Ok((if quote == '"' { unescaped(&value) } else { value }, after))
}

/// Cuts the line at a comment, which needs a space before it: `a#b` is a value.
fn plain(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#' && line[..*at].chars().next_back().is_none_or(char::is_whitespace)
    });
    line[..comment.map_or(line.len(), |(at, _)| at)].trim()
}

fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote == '"' => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

fn unescaped(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        if c != '\\' {
            value.push(c);
            continue;
        }
        match letters.next() {
            Some('n') => value.push('\n'),
            Some('r') => value.push('\r'),
            Some('t') => value.push('\t'),
            Some(c @ ('"' | '\\' | '$' | '`' | '\'')) => value.push(c),
            // A backslash at a line's end continues the line, as in a shell.
            Some('\n') => {}
            Some(other) => value.extend(['\\', other]),
            None => value.push('\\'),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_such_files_mean_them() {
        let text = "\u{feff}# a comment\r\n\r\nPLAIN=value\r\n  export SPACED = two words  # comment\n\
                    EMPTY=\nNONE= # nothing\nHASH=a#b\nSINGLE='it\\n $HOME # \"x\"' # c\n\
                    DOUBLE=\"a \\\"b\\\"\\n\\tc \\$d \\q\"\nTICKS=`it's \"so\"`\n\
                    KEY=\"-----BEGIN KEY-----\r\nline=2\n# no comment\n-----END KEY-----\n\"\n\
                    URL=postgres://u:p@h/db?a=b&c=#d\nexport=x\nPLAIN=last";
        let variables = parse(text).unwrap();
        for (name, expected) in [
            ("PLAIN", "last"),
            ("SPACED", "two words"),
            ("EMPTY", ""),
            ("NONE", ""),
            ("HASH", "a#b"),
            ("SINGLE", "it\\n $HOME # \"x\""),
            ("DOUBLE", "a \"b\"\n\tc $d \\q"),
            ("TICKS", "it's \"so\""),
            ("KEY", "-----BEGIN KEY-----\nline=2\n# no comment\n-----END KEY-----\n"),
            ("URL", "postgres://u:p@h/db?a=b&c=#d"),
            ("export", "x"),
        ] {
            assert_eq!(variables[name], expected, "{name}");
        }
        assert_eq!(variables.len(), 11);
    }

    #[test]
    fn mistakes_name_their_line_and_no_value() {
        for (text, expected) in [
            ("A=1\nsecret words", "line 2 sets nothing"),
            ("A=\"x\ny\"\n\nB", "line 4 sets nothing"),
            ("1A=secret", "line 1 sets nothing"),
            ("A-B=secret", "line 1 sets nothing"),
            ("\n# c\nA=\"secret\n", "line 3: A: the quote \" that begins its value does not end"),
            ("A='secret' more", "line 1: A: something follows the quote '"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(expected) && !error.contains("secret"), "{text:?}: {error}");
        }
        assert!(parse("").unwrap().is_empty());
    }
}
