//! The interpreters and compilers on this machine: in the search path, where distributions put
//! further ones, and where version managers keep them. Each is asked for its version, as names lie.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use recipe_core::runtimes::Language;
use recipe_core::versions::ProgramVersion;

/// The maximum number of programs that are asked: asking takes milliseconds, with Java or npm a few
/// hundred; there are rarely ten.
const PROGRAMS_MAX: usize = 40;
/// The maximum wait for an answer: a program that hangs is no interpreter.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// The maximum length of an answer in bytes: a longer one holds nothing of interest beyond the
/// version.
const ANSWER_BYTES_MAX: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub version: ProgramVersion,
    pub program: PathBuf,
}

/// The names of a language's programs, and the places where managers keep them (`~`: a home
/// directory).
struct LanguagePrograms {
    /// The program that is asked, then those that belong to it.
    programs: &'static [&'static str],
    /// Whether programs like `python3.12` and `php8.2` lie beside the plain name.
    is_numbered: bool,
    question: &'static str,
    /// The text before the version in the answer.
    before: &'static str,
    places: &'static [&'static str],
}

const PLAIN: LanguagePrograms = LanguagePrograms {
    programs: &[],
    is_numbered: false,
    question: "--version",
    before: "",
    places: &[],
};

const PYTHON: LanguagePrograms = LanguagePrograms {
    programs: &["python3", "python"],
    is_numbered: true,
    before: "Python ",
    places: &[
        "~/.pyenv/versions/*/bin",
        "/opt/pyenv/versions/*/bin",
        "/usr/local/pyenv/versions/*/bin",
        "~/.local/share/uv/python/*/bin",
        "~/.local/share/mise/installs/python/*/bin",
        "~/.asdf/installs/python/*/bin",
        "~/.local/bin",
        "/opt/python*/bin",
        "/opt/python/*/bin",
        "/usr/local/python*/bin",
    ],
    ..PLAIN
};

const RUBY: LanguagePrograms = LanguagePrograms {
    programs: &["ruby", "bundle", "bundler", "gem", "rake", "irb", "erb"],
    is_numbered: true,
    before: "ruby ",
    places: &[
        "~/.rbenv/versions/*/bin",
        "/opt/rbenv/versions/*/bin",
        "/usr/local/rbenv/versions/*/bin",
        "~/.rubies/*/bin",
        "/opt/rubies/*/bin",
        "~/.rvm/rubies/*/bin",
        "/usr/local/rvm/rubies/*/bin",
        "~/.local/share/mise/installs/ruby/*/bin",
        "~/.asdf/installs/ruby/*/bin",
        "/opt/ruby*/bin",
        "/usr/local/ruby*/bin",
    ],
    ..PLAIN
};

const NODE: LanguagePrograms = LanguagePrograms {
    programs: &["node", "npm", "npx", "corepack"],
    before: "v",
    places: &[
        "~/.nvm/versions/node/*/bin",
        "/usr/local/nvm/versions/node/*/bin",
        "/opt/nvm/versions/node/*/bin",
        "~/.local/share/fnm/node-versions/*/installation/bin",
        "~/.fnm/node-versions/*/installation/bin",
        "~/.volta/tools/image/node/*/bin",
        "~/.nodenv/versions/*/bin",
        "~/n/n/versions/node/*/bin",
        "/usr/local/n/versions/node/*/bin",
        "~/.local/share/mise/installs/node/*/bin",
        "~/.asdf/installs/nodejs/*/bin",
        "/usr/local/lib/nodejs/*/bin",
        "/opt/node*/bin",
        "/usr/local/node*/bin",
    ],
    ..PLAIN
};

const NPM: LanguagePrograms = LanguagePrograms { programs: &["npm"], ..PLAIN };

const PHP: LanguagePrograms = LanguagePrograms {
    programs: &["php"],
    is_numbered: true,
    before: "PHP ",
    places: &[
        "~/.phpenv/versions/*/bin",
        "~/.local/share/mise/installs/php/*/bin",
        "~/.asdf/installs/php/*/bin",
        "/opt/php*/bin",
        "/usr/local/php*/bin",
    ],
    ..PLAIN
};

const GO: LanguagePrograms = LanguagePrograms {
    programs: &["go", "gofmt"],
    question: "version",
    before: "go version go",
    places: &[
        "~/sdk/go*/bin",
        "~/.goenv/versions/*/bin",
        "~/.local/share/mise/installs/go/*/bin",
        "~/.asdf/installs/golang/*/go/bin",
        "/usr/local/go*/bin",
        "/usr/lib/go-*/bin",
        "/opt/go*/bin",
    ],
    ..PLAIN
};

const RUST: LanguagePrograms = LanguagePrograms {
    programs: &["rustc", "cargo"],
    before: "rustc ",
    places: &["~/.rustup/toolchains/*/bin", "/usr/local/rustup/toolchains/*/bin"],
    ..PLAIN
};

const JAVA: LanguagePrograms = LanguagePrograms {
    programs: &["java", "javac", "jar"],
    question: "-version",
    before: "version \"",
    places: &[
        "/usr/lib/jvm/*/bin",
        "~/.sdkman/candidates/java/*/bin",
        "~/.local/share/mise/installs/java/*/bin",
        "~/.asdf/installs/java/*/bin",
        "/opt/jdk*/bin",
        "/opt/java*/bin",
    ],
    ..PLAIN
};

const ELIXIR: LanguagePrograms = LanguagePrograms {
    programs: &["elixir", "mix", "iex"],
    before: "Elixir ",
    places: &[
        "~/.local/share/mise/installs/elixir/*/bin",
        "~/.asdf/installs/elixir/*/bin",
        "/opt/elixir*/bin",
    ],
    ..PLAIN
};

fn kind(language: Language) -> LanguagePrograms {
    match language {
        Language::Python => PYTHON,
        Language::Ruby => RUBY,
        Language::Node => NODE,
        Language::Npm => NPM,
        Language::Php => PHP,
        Language::Go => GO,
        Language::Rust => RUST,
        Language::Java => JAVA,
        Language::Elixir => ELIXIR,
    }
}

/// Returns the directories of `PATH`. Shims of version managers choose by files of the directory
/// that they are called in, so they are no interpreters; what they choose from is searched instead.
fn directories(path: &str) -> impl Iterator<Item = &Path> {
    let all = path.split(':').map(Path::new);
    all.filter(|directory| directory.is_absolute() && !directory.ends_with("shims"))
}

/// Returns the interpreter that is used where nothing is asked for, then all others, each once.
pub fn programs(language: Language, path: &str, homes: &[PathBuf]) -> Vec<PathBuf> {
    let kind = kind(language);
    let Some(main) = kind.programs.first() else { return Vec::new() };
    let mut found = Vec::new();
    if language == Language::Python {
        // The operating system's comes first: what different users' shells find first differs.
        found.push(PathBuf::from("/usr/bin/python3"));
    }
    found.extend(directories(path).map(|directory| directory.join(main)));
    let mut places: Vec<PathBuf> = directories(path).map(Path::to_path_buf).collect();
    places.extend(kind.places.iter().flat_map(|place| expanded(place, homes)));
    // A manager has `…/versions/3.9.18/bin` beside `…/shims`.
    let managers = path.split(':').map(Path::new).filter(|directory| directory.ends_with("shims"));
    let roots = managers.filter_map(Path::parent).filter(|root| root.is_absolute());
    places.extend(
        roots.flat_map(|root| expanded(&root.join("versions/*/bin").to_string_lossy(), homes)),
    );
    for place in places {
        found.push(place.join(main));
        if kind.is_numbered {
            found.extend(numbered(&place, main));
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|program| {
        is_program(program) && program.canonicalize().is_ok_and(|real| seen.insert(real))
    });
    found.truncate(PROGRAMS_MAX);
    found
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Finds `python3.12` for `python3` and `ruby3.1` for `ruby`, the newest first.
fn numbered(place: &Path, main: &str) -> Vec<PathBuf> {
    let stem = main.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |name: &OsStr| {
        let rest = name.to_str()?.strip_prefix(stem)?;
        // A `python2.7` is no `python3`.
        let same = rest.starts_with(&main[stem.len()..]);
        let plain =
            same && rest.contains('.') && rest.chars().all(|c| c.is_ascii_digit() || c == '.');
        ProgramVersion::parse(rest).filter(|_| plain).map(|version| version.numbers().to_vec())
    };
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((number(&entry.file_name())?, entry.path()))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// Returns the directories that a pattern with one `*` in some of its names stands for, in order.
fn expanded(pattern: &str, homes: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = match pattern.strip_prefix("~/") {
        Some(_) => homes.to_vec(),
        None => vec!["/".into()],
    };
    for name in pattern.trim_start_matches('~').trim_start_matches('/').split('/') {
        let Some((start, end)) = name.split_once('*') else {
            found.iter_mut().for_each(|directory| directory.push(name));
            continue;
        };
        let fits = |name: &OsStr| {
            name.to_str().is_some_and(|name| name.starts_with(start) && name.ends_with(end))
        };
        let below = |directory: PathBuf| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let mut names: Vec<PathBuf> = entries
                .filter(|entry| fits(&entry.file_name()))
                .map(|entry| entry.path())
                .collect();
            names.sort();
            names.truncate(PROGRAMS_MAX);
            names
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found.retain(|directory| directory.is_dir());
    found
}

/// Asks a program for its version; `None` if it does not run.
pub fn ask(language: Language, program: &Path) -> Option<Installed> {
    let kind = kind(language);
    let mut child = Command::new(program)
        .arg(kind.question)
        .current_dir("/")
        .env_remove("PYENV_VERSION")
        .env_remove("RBENV_VERSION")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let end = Instant::now() + ANSWER_MAX;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            child.kill().ok();
            child.wait().ok();
            return None;
        }
        std::thread::sleep(POLL);
    }
    let mut text = String::new();
    let (stdout, stderr) = (child.stdout.take()?, child.stderr.take()?);
    stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut text).ok()?;
    stderr.take(ANSWER_BYTES_MAX).read_to_string(&mut text).ok()?;
    let version = ProgramVersion::parse(text.split_once(kind.before)?.1)?;
    Some(Installed { version, program: program.to_path_buf() })
}

/// Returns the directory to be put before `path` so that the plain names mean `program`; `None` if
/// they do already. Links are made below `links` where that directory holds much else.
pub fn entry(
    language: Language,
    program: &Path,
    path: &str,
    links: &Path,
) -> std::io::Result<Option<PathBuf>> {
    let kind = kind(language);
    let (Some(main), Some(directory)) = (kind.programs.first(), program.parent()) else {
        return Ok(None);
    };
    let first = path.split(':').map(Path::new).find(|at| is_program(&at.join(main)));
    let is_plain = program.file_name() == Some(OsStr::new(main));
    if is_plain && first == Some(directory) {
        return Ok(None);
    }
    if is_plain && !path.split(':').any(|at| Path::new(at) == directory) {
        return Ok(Some(directory.to_path_buf()));
    }
    os::directory::private_directory(links)?;
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let number = name.strip_prefix(main.trim_end_matches(|c: char| c.is_ascii_digit()));
    for tool in kind.programs {
        let numbered = format!("{tool}{}", number.unwrap_or_default());
        let of_it = if is_plain { (*tool).to_owned() } else { numbered };
        let target = match directory.join(of_it) {
            target if is_program(&target) => target,
            // This is Python's other name.
            _ if language == Language::Python => program.to_path_buf(),
            _ => continue,
        };
        link(&target, &links.join(tool))?;
    }
    Ok(Some(links.to_path_buf()))
}

/// Makes a link. Others may start a program by the same name meanwhile, so the link is replaced and
/// never missing.
fn link(target: &Path, name: &Path) -> std::io::Result<()> {
    if std::fs::read_link(name).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let fresh = name.with_extension(format!("{}.fresh", std::process::id()));
    std::fs::remove_file(&fresh).ok();
    std::os::unix::fs::symlink(target, &fresh)?;
    std::fs::rename(&fresh, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, says: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn managers_are_searched_and_shims_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let node = home.join(".nvm/versions/node/v22.1.0/bin/node");
        program(&node, "v22.1.0");
        program(&home.join(".nvm/shims/node"), "v1.0.0");
        let own = directory.path().join("manager");
        program(&own.join("versions/20/bin/node"), "v20.2.0");
        let path = format!("{}:{}", own.join("shims").display(), home.join(".nvm/shims").display());
        let found = programs(Language::Node, &path, std::slice::from_ref(&home));
        let found: Vec<_> = found
            .iter()
            .filter(|path| path.starts_with(directory.path()))
            .filter_map(|program| ask(Language::Node, program))
            .collect();
        let versions: Vec<String> = found.iter().map(|one| one.version.to_string()).collect();
        assert_eq!(versions, ["22.1.0", "20.2.0"]);
        assert_eq!(found[0].program, node);
    }

    #[test]
    fn a_program_with_a_number_gets_its_plain_name() {
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().join("bin");
        for (name, says) in
            [("ruby", "ruby 3.1.2p20"), ("ruby3.3", "ruby 3.3.1 (x)"), ("gem3.3", "x")]
        {
            program(&bin.join(name), says);
        }
        let path = bin.display().to_string();
        let found = programs(Language::Ruby, &path, &[]);
        assert_eq!(found[..2], [bin.join("ruby"), bin.join("ruby3.3")]);
        assert_eq!(ask(Language::Ruby, &found[1]).unwrap().version.to_string(), "3.3.1");
        let links = directory.path().join("links");
        assert_eq!(entry(Language::Ruby, &found[0], &path, &links).unwrap(), None);
        for _ in 0..2 {
            let entry = entry(Language::Ruby, &found[1], &path, &links).unwrap();
            assert_eq!(entry.as_deref(), Some(&*links));
        }
        assert_eq!(std::fs::read_link(links.join("ruby")).unwrap(), bin.join("ruby3.3"));
        assert_eq!(std::fs::read_link(links.join("gem")).unwrap(), bin.join("gem3.3"));
        assert!(!links.join("rake").exists());
        let elsewhere = entry(Language::Ruby, &found[0], "/usr/bin:/bin", &links).unwrap();
        assert_eq!(elsewhere, Some(bin), "a directory of its own needs no links");
    }

    #[test]
    fn what_does_not_answer_is_no_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let odd = directory.path().join("go");
        program(&odd, "hello");
        assert_eq!(ask(Language::Go, &odd), None);
        assert_eq!(ask(Language::Go, &directory.path().join("none")), None);
    }
}
