//! The commands in package.json's scripts: read word by word, never run.

use crate::frameworks::package_json::Package;

/// Depth of scripts that call each other; deeper ones do so in a circle.
const CALLS_MAX: usize = 4;
/// Programs that only serve sources to their author, whatever their arguments.
const SERVERS: &[&str] =
    &["live-server", "lite-server", "browser-sync", "webpack-dev-server", "nodemon-webpack-plugin"];
/// Programs that do so by one of these first arguments.
const SERVING: &[(&str, &[&str])] = &[
    ("react-scripts", &["start"]),
    ("react-app-rewired", &["start"]),
    ("craco", &["start"]),
    ("vite", &["dev", "serve", "preview"]),
    ("ng", &["serve", "s", "dev"]),
    ("vue-cli-service", &["serve"]),
    ("gatsby", &["develop", "serve"]),
    ("docusaurus", &["start", "serve"]),
    ("astro", &["dev", "start", "preview"]),
    ("ember", &["serve", "server", "s"]),
    ("webpack", &["serve", "s", "server"]),
    ("webpack-cli", &["serve"]),
    ("rspack", &["serve", "dev", "s"]),
    ("rsbuild", &["dev", "preview"]),
    ("vuepress", &["dev"]),
    ("vitepress", &["dev", "preview", "serve"]),
    ("svelte-kit", &["dev", "preview"]),
    ("nuxt", &["dev"]),
    ("nuxi", &["dev"]),
    ("remix", &["dev", "vite:dev"]),
    ("react-router", &["dev"]),
    ("next", &["dev"]),
    ("gridsome", &["develop"]),
    ("snowpack", &["dev"]),
    ("hexo", &["server", "s"]),
    ("ionic", &["serve"]),
    ("quasar", &["dev"]),
    ("parcel", &["serve", "watch"]),
];

/// One command of a shell line: its program without directories, and its arguments.
struct ShellCommand<'a> {
    program: &'a str,
    arguments: Vec<&'a str>,
}

/// Returns whether `text` ends in a server for development, which is no server for others.
pub fn is_development_server(package: &Package, text: &str) -> bool {
    serves_sources(package, text, 0)
}

fn serves_sources(package: &Package, text: &str, depth: usize) -> bool {
    commands(text).iter().any(|command| {
        let first = command.arguments.first().copied();
        let option = |names: &[&str]| command.arguments.iter().any(|word| names.contains(word));
        let called = script_called(command).and_then(|name| package.script(name));
        match command.program {
            program if SERVERS.contains(&program) => true,
            // These serve if no command is given.
            "vite" => first.is_none_or(|word| {
                word.starts_with('-') || word != "build" && is_serving("vite", word)
            }),
            "parcel" => first.is_some_and(|word| word != "build" && word != "help"),
            "eleventy" => option(&["--serve", "--watch"]),
            "webpack" if option(&["--watch", "-w"]) => true,
            "stencil" => option(&["--serve"]),
            program if first.is_some_and(|word| is_serving(program, word)) => true,
            _ => {
                depth < CALLS_MAX
                    && called.is_some_and(|text| serves_sources(package, text, depth + 1))
            }
        }
    })
}

fn is_serving(program: &str, word: &str) -> bool {
    SERVING.iter().any(|(name, words)| *name == program && words.contains(&word))
}

/// Returns the script that `npm run NAME` and its like call.
fn script_called<'a>(command: &ShellCommand<'a>) -> Option<&'a str> {
    if !["npm", "yarn", "pnpm", "bun"].contains(&command.program) {
        return None;
    }
    let mut words = command.arguments.iter().copied().filter(|word| !word.starts_with('-'));
    match words.next()? {
        "run" | "run-script" => words.next(),
        name => Some(name),
    }
}

/// Returns whether a script calls one of the project's programs.
pub fn calls(text: &str, program: &str) -> bool {
    commands(text).iter().any(|command| command.program == program)
}

/// Returns the value of an option of a program: `--outDir x`, `--outDir=x`.
pub fn option_of<'a>(text: &'a str, program: &str, names: &[&str]) -> Option<&'a str> {
    let commands = commands(text);
    let command = commands.iter().find(|command| command.program == program)?;
    command.arguments.iter().enumerate().find_map(|(index, word)| {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*word, None),
        };
        let value = inline.or_else(|| command.arguments.get(index + 1).copied());
        value.filter(|_| names.contains(&name)).map(|value| value.trim_matches(['"', '\'']))
    })
}

/// Returns the first argument that is no option, after the program's own command.
pub fn argument_of<'a>(text: &'a str, program: &str, after: &str) -> Option<&'a str> {
    let commands = commands(text);
    let command = commands.iter().find(|command| command.program == program)?;
    let mut words = command.arguments.iter().copied().skip_while(|word| *word != after).skip(1);
    words.find(|word| !word.starts_with('-'))
}

/// Returns the value of a variable that is set before a command.
pub fn variable_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim_matches(['"', '\'']))
}

fn commands(text: &str) -> Vec<ShellCommand<'_>> {
    text.split(['&', '|', ';']).filter_map(command).collect()
}

fn command(text: &str) -> Option<ShellCommand<'_>> {
    let before = ["cross-env", "cross-env-shell", "env", "npx", "bunx", "exec", "dotenv", "--"];
    let runners = ["yarn", "pnpm", "bun", "npm"];
    let mut words = text.split_whitespace().peekable();
    let mut program = None;
    while let Some(word) = words.next() {
        let name = word.rsplit('/').next().unwrap_or(word);
        let assigns = word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        // `yarn vite build` runs the program, `yarn build` a script.
        let runs = runners.contains(&name)
            && words.peek().is_some_and(|next| {
                matches!(*next, "exec" | "dlx") || SERVING.iter().any(|(known, _)| known == next)
            });
        if assigns || before.contains(&name) || runs || (word == "--yes" || word == "-y") {
            continue;
        }
        program = Some(name);
        break;
    }
    Some(ShellCommand { program: program?, arguments: words.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceTree;

    #[test]
    fn servers_for_development_are_told_from_others() {
        let text = r#"{"scripts": {"dev": "vite", "serve": "node server.js", "a": "npm run a"}}"#;
        let tree = SourceTree::from_pairs([("package.json", text)]);
        let package = Package::read(&tree).unwrap();
        for (start, expected) in [
            ("react-scripts start", true),
            ("cross-env BROWSER=none PORT=3000 react-scripts start", true),
            ("vite", true),
            ("vite --host", true),
            ("vite build && vite preview", true),
            ("vite build", false),
            ("npx vite preview --port 80", true),
            ("ng serve --open", true),
            ("npm run dev", true),
            ("yarn dev", true),
            ("npm run serve", false),
            ("npm run a", false),
            ("./node_modules/.bin/eleventy --serve", true),
            ("npx @11ty/eleventy --serve", true),
            ("parcel src/index.html", true),
            ("webpack serve --mode development", true),
            ("yarn webpack serve", true),
            ("serve -s build", false),
            ("node server.js", false),
            ("npm run build && node dist/index.js", false),
        ] {
            assert_eq!(is_development_server(&package, start), expected, "{start}");
        }
    }

    #[test]
    fn options_and_arguments_are_read_off() {
        let text = "tsc -b && vite build --outDir=../public --emptyOutDir";
        assert_eq!(option_of(text, "vite", &["--outDir"]), Some("../public"));
        assert_eq!(option_of("eleventy --output x", "eleventy", &["--output"]), Some("x"));
        assert_eq!(argument_of("vitepress build docs", "vitepress", "build"), Some("docs"));
        assert_eq!(argument_of("vitepress build --base x", "vitepress", "build"), Some("x"));
        assert_eq!(variable_of("BUILD_PATH='./x' react-scripts build", "BUILD_PATH"), Some("./x"));
        assert!(calls("NODE_ENV=production npx webpack --mode production", "webpack"));
    }
}
