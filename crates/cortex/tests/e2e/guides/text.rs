//! What a guide consists of for whoever follows it: files to make and commands to type, with what
//! these print. It runs nothing.

use std::fmt;

/// A machine as prompts name it: `two$ ` is typed on the machine `two`, a bare `$ ` on the first.
pub const FIRST: &str = "";

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A fenced block that the paragraph before introduces by the file's name.
    File { path: String, text: String },
    /// A command of a `console` block, and the lines that it prints there.
    Command { machine: String, command: String, shown: Vec<String> },
}

/// A line of a guide that nobody could follow.
#[derive(Debug, PartialEq, Eq)]
pub struct Unclear {
    pub line: usize,
    pub why: &'static str,
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Returns the steps of a guide, each with the number of its line.
pub fn steps(markdown: &str) -> Result<Vec<(usize, Step)>, Unclear> {
    let mut steps = Vec::new();
    let mut named = None;
    let mut lines = markdown.lines().zip(1..);
    while let Some((text, line)) = lines.next() {
        let Some(language) = text.strip_prefix("```") else {
            if !text.is_empty() {
                named = file_name(text);
            }
            continue;
        };
        let mut block = Vec::new();
        loop {
            let why = "its block does not end";
            let (text, line) = lines.next().ok_or(Unclear { line, why })?;
            if text == "```" {
                break;
            }
            block.push((line, text));
        }
        match (language, named.take()) {
            ("console", _) => commands(&block, &mut steps)?,
            (_, Some(path)) => {
                let text = block.iter().map(|(_, text)| format!("{text}\n")).collect();
                steps.push((line, Step::File { path, text }));
            }
            (_, None) => {
                let why =
                    "a block is `console`, or the line before ends with a file's name: `x.py`:";
                return Err(Unclear { line, why });
            }
        }
    }
    Ok(steps)
}

/// Returns the name in a line that ends with it and a colon: "Write this into `app.py`:".
fn file_name(line: &str) -> Option<String> {
    let (_, name) = line.strip_suffix("`:")?.rsplit_once('`')?;
    Some(name.to_owned())
}

fn commands(block: &[(usize, &str)], steps: &mut Vec<(usize, Step)>) -> Result<(), Unclear> {
    let before = steps.len();
    for (line, text) in block {
        if let Some((machine, command)) = prompt(text) {
            let command = command.to_owned();
            let machine = machine.to_owned();
            steps.push((*line, Step::Command { machine, command, shown: Vec::new() }));
            continue;
        }
        let last = if steps.len() > before { steps.last_mut() } else { None };
        let Some((_, Step::Command { command, shown, .. })) = last else {
            return Err(Unclear { line: *line, why: "a `console` block begins with a prompt" });
        };
        match text.strip_prefix("> ") {
            Some(more) if shown.is_empty() => {
                command.push('\n');
                command.push_str(more);
            }
            _ => shown.push((*text).to_owned()),
        }
    }
    Ok(())
}

/// Returns the machine and the command of a line with a prompt.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (machine, command) = line.split_once("$ ")?;
    machine.bytes().all(|byte| byte.is_ascii_lowercase()).then_some((machine, command))
}

#[test]
fn files_and_commands_are_found_in_order() {
    let text = "# Title

Write this into `web/app.py`:

```python
print('$ ')
```

Then push it:

```console
$ cortex push web
=====> done
  twice $ 5

laptop$ cat <<END
> text
> END
text
```
";
    let command = |machine: &str, command: &str, shown: &[&str]| Step::Command {
        machine: machine.into(),
        command: command.into(),
        shown: shown.iter().map(ToString::to_string).collect(),
    };
    let file = Step::File { path: "web/app.py".into(), text: "print('$ ')\n".into() };
    let push = command(FIRST, "cortex push web", &["=====> done", "  twice $ 5", ""]);
    let cat = command("laptop", "cat <<END\ntext\nEND", &["text"]);
    assert_eq!(steps(text), Ok(vec![(5, file), (12, push), (16, cat)]));
}

#[test]
fn a_block_that_nobody_could_follow_is_refused() {
    let line = |text: &str| steps(text).expect_err("it is unclear").line;
    assert_eq!(line("x\n\n```python\nx\n```\n"), 3);
    assert_eq!(line("```console\n$ x\n```\n```console\nprinted\n```\n"), 5);
    assert_eq!(line("\n```console\n$ x\n"), 2);
}
