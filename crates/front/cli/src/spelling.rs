//! Heroku's spellings: `ps:scale web=3` for `scale web=3`, `config:set A=b` for `config set A=b`.

use std::ffi::OsString;

/// Spellings whose part before the colon is not the command's first word.
const RENAMED: &[(&str, &[&str])] = &[
    ("ps:scale", &["scale"]),
    ("ps:restart", &["restart"]),
    ("dyno:scale", &["scale"]),
    ("dyno:restart", &["restart"]),
    ("apps:info", &["info"]),
    ("apps:open", &["open"]),
    ("releases:rollback", &["rollback"]),
    ("create", &["apps", "create"]),
];
/// Global options that take a value: the word after them is no command.
const WITH_VALUE: &[&str] = &["--data-dir", "--color", "--colour", "--token", "--context", "--url"];

pub fn normalise(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut normal = Vec::with_capacity(arguments.len() + 1);
    let mut arguments = arguments.into_iter();
    normal.extend(arguments.next());
    while let Some(argument) = arguments.next() {
        let Some(word) = argument.to_str() else {
            normal.push(argument);
            break;
        };
        if WITH_VALUE.contains(&word) {
            normal.push(argument);
            normal.extend(arguments.next());
        } else if word.starts_with('-') {
            normal.push(argument);
        } else {
            normal.extend(command(word));
            break;
        }
    }
    normal.extend(arguments);
    normal
}

fn command(word: &str) -> Vec<OsString> {
    match RENAMED.iter().find(|(spelling, _)| *spelling == word) {
        Some((_, words)) => words.iter().map(OsString::from).collect(),
        None => word.splitn(2, ':').map(OsString::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let words = line.split(' ').map(OsString::from).collect();
        let normal: Vec<String> =
            normalise(words).into_iter().map(|word| word.into_string().unwrap()).collect();
        assert_eq!(normal.join(" "), expected);
    }

    #[test]
    fn colons_are_understood() {
        check("cortex ps:scale web=3", "cortex scale web=3");
        check("cortex config:set A=b:c", "cortex config set A=b:c");
        check("cortex --data-dir x:y apps:create z", "cortex --data-dir x:y apps create z");
        check("cortex --color never ps:scale web=3", "cortex --color never scale web=3");
        check("cortex store get a::b", "cortex store get a::b");
        check("cortex --data-dir", "cortex --data-dir");
        check("cortex", "cortex");
    }
}
