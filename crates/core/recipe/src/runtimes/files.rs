//! The files that name versions, the one that counts most first.

use serde_json::Value;

use super::Language;
use crate::frameworks::gems::GEMFILE;
use crate::source::SourceTree;

/// A range and the file that says so.
type AskedRange = (String, String);

/// Returns the files of nothing but one version, or of several, any of which will do.
fn version_files(language: Language) -> &'static [&'static str] {
    match language {
        Language::Python => &[".python-version", "runtime.txt"],
        Language::Ruby => &[".ruby-version"],
        Language::Node => &[".nvmrc", ".node-version"],
        Language::Php => &[".php-version"],
        Language::Go => &[".go-version"],
        Language::Java => &[".java-version"],
        Language::Elixir => &[".elixir-version"],
        Language::Rust | Language::Npm => &[],
    }
}

/// Returns the language's names in `.tool-versions` and mise.toml.
fn tool_names(language: Language) -> &'static [&'static str] {
    match language {
        Language::Node => &["node", "nodejs"],
        Language::Go => &["go", "golang"],
        Language::Npm => &["npm"],
        Language::Python => &["python"],
        Language::Ruby => &["ruby"],
        Language::Php => &["php"],
        Language::Rust => &["rust"],
        Language::Java => &["java"],
        Language::Elixir => &["elixir"],
    }
}

pub fn asked(tree: &SourceTree, language: Language) -> Vec<AskedRange> {
    let mut found = Vec::new();
    for file in version_files(language) {
        let versions = tree.text(file).into_iter().flat_map(|text| text.lines()).map(uncommented);
        push(
            &mut found,
            versions.filter(|line| !line.is_empty()).map(|v| plain(language, v)),
            file,
        );
    }
    if let Some(text) = tree.text(".tool-versions") {
        for line in text.lines().map(uncommented) {
            let mut words = line.split_whitespace();
            if words.next().is_some_and(|name| tool_names(language).contains(&name)) {
                push(&mut found, words.map(|word| plain(language, word)), ".tool-versions");
            }
        }
    }
    for file in ["mise.toml", ".mise.toml"] {
        push(&mut found, mise(tree, file, language).iter().map(|v| plain(language, v)), file);
    }
    match language {
        Language::Python => found.extend(python(tree)),
        Language::Ruby => found.extend(gemfile(tree)),
        Language::Node => {
            found.extend(package(tree, "engines", "node"));
            found.extend(package(tree, "volta", "node"));
        }
        Language::Npm => found.extend(package(tree, "engines", "npm")),
        Language::Php => found.extend(composer(tree)),
        Language::Go => found.extend(go_module(tree)),
        Language::Rust => found.extend(rust_toolchain(tree)),
        Language::Java => found.extend(system_properties(tree)),
        Language::Elixir => {}
    }
    found
}

/// Adds versions; several mean that any of them will do.
fn push(found: &mut Vec<AskedRange>, versions: impl Iterator<Item = Option<String>>, file: &str) {
    let versions: Vec<String> = versions.flatten().collect();
    if !versions.is_empty() {
        found.push((versions.join(" || "), file.to_owned()));
    }
}

fn uncommented(line: &str) -> &str {
    let line = line.trim_start_matches('\u{feff}');
    line.split('#').next().unwrap_or_default().trim()
}

/// Returns the version of `python-3.9.1`, `ruby-3.1`, `temurin-21.0.2+13`, `1.16.1-otp-26`; `None`
/// for what the machine has.
fn plain(language: Language, text: &str) -> Option<String> {
    let text = text.trim();
    if ["system", "default", ""].contains(&text) {
        return None;
    }
    let prefix = format!("{}-", language.name());
    let text = text.strip_prefix(&prefix).unwrap_or(text);
    let text = match language {
        // The vendor's name comes first.
        Language::Java => text.trim_start_matches(|c: char| !c.is_ascii_digit()),
        Language::Elixir => text.split("-otp").next().unwrap_or(text),
        Language::Go => text.strip_prefix("go").unwrap_or(text),
        _ => text,
    };
    Some(text.strip_suffix("-dev").unwrap_or(text).to_owned())
}

fn mise(tree: &SourceTree, file: &str, language: Language) -> Vec<String> {
    let table: Option<toml::Table> = tree.text(file).and_then(|text| text.parse().ok());
    let tools = table.as_ref().and_then(|table| table.get("tools"));
    let value =
        tools.and_then(|tools| tool_names(language).iter().find_map(|name| tools.get(name)));
    let one = |value: &toml::Value| {
        let text = value.as_str().or_else(|| value.get("version").and_then(|v| v.as_str()));
        text.map(str::to_owned)
    };
    match value {
        Some(toml::Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn python(tree: &SourceTree) -> Vec<AskedRange> {
    let table = |file: &str| -> toml::Table {
        let text = tree.text(file).unwrap_or_default().trim_start_matches('\u{feff}');
        text.parse().unwrap_or_default()
    };
    let at = |file: &str, path: &[&str]| -> Option<String> {
        let table = toml::Value::Table(table(file));
        let value = path.iter().try_fold(&table, |value, key| value.get(key))?;
        let text = value.as_str().or_else(|| value.get("version").and_then(|v| v.as_str()));
        text.map(str::to_owned)
    };
    let mut found = Vec::new();
    let full = at("Pipfile", &["requires", "python_full_version"]);
    let pipfile = full.or_else(|| at("Pipfile", &["requires", "python_version"]));
    found.extend(pipfile.map(|wanted| (wanted, "Pipfile".into())));
    let project = at("pyproject.toml", &["project", "requires-python"]);
    found.extend(project.map(|wanted| (wanted, "requires-python in pyproject.toml".into())));
    let poetry = at("pyproject.toml", &["tool", "poetry", "dependencies", "python"]);
    found.extend(poetry.map(|wanted| (wanted, "pyproject.toml".into())));
    for file in ["setup.py", "setup.cfg"] {
        let wanted = tree.text(file).and_then(python_requires);
        found.extend(wanted.map(|wanted| (wanted, format!("python_requires in {file}"))));
    }
    found
}

/// Returns the value of `python_requires=">=3.8",` and `python_requires = >=3.8`, if it is written
/// out.
fn python_requires(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.trim_start().starts_with("python_requires"))?;
    let value = line.split_once('=')?.1.trim().trim_end_matches(',').trim();
    let value = value.trim_matches(['"', '\'']);
    value.starts_with(['<', '>', '=', '~', '!']).then(|| value.to_owned())
}

/// Returns the range of `ruby "3.1.2"`, `ruby ">= 3.0", "< 3.3"`; another engine than Ruby's own is
/// named as it is written.
fn gemfile(tree: &SourceTree) -> Option<AskedRange> {
    let line = tree.text(GEMFILE)?.lines().map(uncommented).find(|line| {
        line.strip_prefix("ruby").is_some_and(|rest| rest.starts_with([' ', '(', '"', '\'']))
    })?;
    // `ruby file: ".ruby-version"` is read there.
    if line.contains("file:") {
        return None;
    }
    let wanted = match line.split_once("engine:") {
        Some((_, engine)) => quoted(engine).next()?.to_owned(),
        None => quoted(line).collect::<Vec<_>>().join(", "),
    };
    let wanted = wanted.strip_prefix("ruby-").unwrap_or(&wanted).to_owned();
    (!wanted.is_empty()).then(|| (wanted, GEMFILE.into()))
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split(['"', '\'']).skip(1).step_by(2)
}

fn json(tree: &SourceTree, file: &str) -> Option<Value> {
    serde_json::from_str(tree.text(file)?.trim_start_matches('\u{feff}')).ok()
}

fn package(tree: &SourceTree, section: &str, key: &str) -> Option<AskedRange> {
    let package = json(tree, "package.json")?;
    let wanted = package.get(section)?.get(key)?.as_str()?.trim().to_owned();
    Some((wanted, format!("{section} in package.json")))
}

fn composer(tree: &SourceTree) -> Option<AskedRange> {
    let wanted = json(tree, "composer.json")?.get("require")?.get("php")?.as_str()?.to_owned();
    Some((wanted, "composer.json".into()))
}

/// Returns the toolchain if one is named, else the language's version: newer ones build it too.
fn go_module(tree: &SourceTree) -> Option<AskedRange> {
    let text = tree.text("go.mod")?;
    let line = |key: &str| {
        let words = |line: &'_ str| -> Vec<String> {
            line.split("//")
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        let mut lines = text.lines().map(words);
        lines.find_map(|words| match &words[..] {
            [first, version] if first == key => Some(version.clone()),
            _ => None,
        })
    };
    let toolchain = line("toolchain").and_then(|name| name.strip_prefix("go").map(str::to_owned));
    let version = toolchain.or_else(|| line("go"))?;
    Some((format!(">={version}"), "go.mod".into()))
}

/// Returns the toolchain. Channels without a number are whatever rustup has of them.
fn rust_toolchain(tree: &SourceTree) -> Option<AskedRange> {
    let numbered = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let named = |file: &str| {
        let text = tree.text(file)?;
        let table: Option<toml::Table> = text.parse().ok();
        let channel = table.as_ref().and_then(|table| table.get("toolchain")?.get("channel"));
        let channel = channel.and_then(|channel| channel.as_str()).unwrap_or(text.trim());
        numbered(channel).then(|| (channel.to_owned(), file.to_owned()))
    };
    named("rust-toolchain.toml").or_else(|| named("rust-toolchain"))
}

fn system_properties(tree: &SourceTree) -> Option<AskedRange> {
    const FILE: &str = "system.properties";
    let lines = tree.text(FILE)?.lines().filter_map(|line| line.split_once('='));
    let mut wanted = lines.filter(|(key, _)| key.trim() == "java.runtime.version");
    wanted.next().map(|(_, version)| (version.trim().to_owned(), FILE.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(language: Language, file: &str, text: &str, expected: &[&str]) {
        let found = asked(&SourceTree::from_pairs([(file, text)]), language);
        let found: Vec<&str> = found.iter().map(|(wanted, _)| wanted.as_str()).collect();
        assert_eq!(found, expected, "{file}: {text}");
    }

    #[test]
    fn python_is_asked_for_in_many_files() {
        let check = |file, text, expected| check(Language::Python, file, text, &[expected]);
        check(".python-version", "# mine\n3.11.4\n3.10 \n", "3.11.4 || 3.10");
        check("runtime.txt", "python-3.9.1\r\n", "3.9.1");
        check("Pipfile", "[requires]\npython_version = \"3.11\"\n", "3.11");
        check("Pipfile", "[requires]\npython_full_version = \"3.11.4\"\n", "3.11.4");
        check("pyproject.toml", "[project]\nrequires-python = \">=3.9\"\n", ">=3.9");
        check("pyproject.toml", "[tool.poetry.dependencies]\npython = \"^3.11\"\n", "^3.11");
        check(".tool-versions", "nodejs 20.1\npython 3.12.1 3.11.7 # x\n", "3.12.1 || 3.11.7");
        check("mise.toml", "[tools]\npython = [\"3.11\", \"3.10\"]\n", "3.11 || 3.10");
        check(".mise.toml", "[tools]\npython = {version = \"3.11\"}\n", "3.11");
        check("setup.py", "setup(\n  python_requires='>=3.8',\n)", ">=3.8");
        super::tests::check(Language::Python, ".python-version", "system\n", &[]);
    }

    #[test]
    fn versions_of_other_languages_are_read() {
        let gemfile = |text, expected: &[&str]| check(Language::Ruby, GEMFILE, text, expected);
        gemfile("source 'x'\nruby '~> 3.1'\n", &["~> 3.1"]);
        gemfile("ruby \">= 3.0\", \"< 3.3\"\n", &[">= 3.0, < 3.3"]);
        gemfile("ruby file: \".ruby-version\"\nrubygems 'x'\n", &[]);
        gemfile("ruby '2.6', engine: 'jruby', engine_version: '9.3'\n", &["jruby"]);
        check(Language::Ruby, ".ruby-version", "ruby-3.1.2\n", &["3.1.2"]);
        check(Language::Node, ".nvmrc", "v22.1.0\n", &["v22.1.0"]);
        check(Language::Node, ".tool-versions", "nodejs 20.1.0\n", &["20.1.0"]);
        let package =
            r#"{"engines": {"node": ">=18", "npm": ">=99"}, "volta": {"node": "20.1.0"}}"#;
        check(Language::Node, "package.json", package, &[">=18", "20.1.0"]);
        check(Language::Npm, "package.json", package, &[">=99"]);
        check(Language::Php, "composer.json", r#"{"require": {"php": "^8.1"}}"#, &["^8.1"]);
        check(Language::Go, "go.mod", "module x\n\ngo 1.22 // y\n", &[">=1.22"]);
        check(Language::Go, "go.mod", "go 1.21\ntoolchain go1.22.3\n", &[">=1.22.3"]);
        check(Language::Rust, "rust-toolchain", "1.75.0\n", &["1.75.0"]);
        let stable = "[toolchain]\nchannel = \"stable\"\n";
        check(Language::Rust, "rust-toolchain.toml", stable, &[]);
        check(Language::Java, ".java-version", "temurin-21.0.2+13\n", &["21.0.2+13"]);
        check(Language::Java, "system.properties", "java.runtime.version=17\n", &["17"]);
        check(Language::Elixir, ".tool-versions", "elixir 1.16.1-otp-26\n", &["1.16.1"]);
    }
}
