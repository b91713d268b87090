//! The program that a shell did not find, and how it is got. Texts alone; asked by supervision, and
//! by those that run build steps.

/// The end of a command whose program does not exist, in shells and in make, npm and the like after
/// them.
pub const NOT_FOUND: &str = "exit status 127";
/// Bytes of a program's name; longer ones are no names of programs.
const NAME_BYTES_MAX: usize = 64;

/// Programs that Debian's packages bring, by names that differ or that people look for.
const PACKAGES: &[(&str, &str)] = &[
    ("bundle", "ruby-bundler"),
    ("cargo", "cargo"),
    ("cc", "build-essential"),
    ("cmake", "cmake"),
    ("composer", "composer"),
    ("ffmpeg", "ffmpeg"),
    ("g++", "build-essential"),
    ("gcc", "build-essential"),
    ("gem", "ruby"),
    ("git", "git"),
    ("go", "golang-go"),
    ("gradle", "gradle"),
    ("java", "default-jre-headless"),
    ("javac", "default-jdk-headless"),
    ("make", "build-essential"),
    ("mix", "elixir"),
    ("mvn", "maven"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("npx", "npm"),
    ("perl", "perl"),
    ("php", "php-cli"),
    ("pip", "python3-pip"),
    ("pip3", "python3-pip"),
    ("python", "python-is-python3"),
    ("python3", "python3"),
    ("ruby", "ruby"),
    ("sqlite3", "sqlite3"),
    ("unzip", "unzip"),
];
/// Programs that an application's own packages bring, by the file that lists these.
const LISTED: &[(&str, &[&str])] = &[
    (
        "requirements.txt",
        &[
            "alembic",
            "celery",
            "daphne",
            "django-admin",
            "fastapi",
            "flask",
            "granian",
            "gunicorn",
            "hypercorn",
            "streamlit",
            "uvicorn",
            "uwsgi",
            "waitress-serve",
        ],
    ),
    ("Gemfile", &["puma", "rackup", "rails", "rake", "sidekiq", "thin", "unicorn"]),
    (
        "package.json",
        &[
            "astro", "next", "nodemon", "nuxt", "pm2", "prisma", "serve", "ts-node", "tsc", "tsx",
            "vite", "webpack",
        ],
    ),
];

/// Returns what to do where a command ended with `how` and these last words; `None` if every
/// program was found, or nothing says which was not.
pub fn advice(how: &str, last_words: &str) -> Option<String> {
    if how != NOT_FOUND {
        return None;
    }
    let name = last_words.lines().rev().find_map(named)?;
    if name.contains('/') {
        return Some(format!(
            "{name} is not among the files of this build, or the interpreter in its first line is \
             not on this machine"
        ));
    }
    if let Some((file, _)) = LISTED.iter().find(|(_, names)| names.contains(&name)) {
        return Some(format!("{name} is not installed: list it in {file}, and push again"));
    }
    let package = PACKAGES.iter().find(|(program, _)| *program == name);
    let how = match package {
        Some((_, package)) => {
            format!("install it (on Debian and Ubuntu: apt install {package}), and push again")
        }
        None => "install it, or start the node with its directory in PATH".to_owned(),
    };
    Some(format!("{name} is not on this machine: {how}"))
}

/// Returns the program that, by one line of a shell or of `env`, does not exist.
fn named(line: &str) -> Option<&str> {
    const FOUND: [&str; 2] = [": command not found", ": not found"];
    let shell = || FOUND.iter().find_map(|end| line.strip_suffix(end));
    let env = || {
        let rest = line.strip_suffix(": No such file or directory")?;
        rest.rsplit_once("env: ").map(|(_, name)| name)
    };
    let text = shell().or_else(env)?;
    let name = text.rsplit(": ").next()?.trim_matches(['\'', '"', '‘', '’']);
    let plain = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(' ');
    plain.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_named_by_every_shell() {
        for line in [
            "/bin/sh: 1: exec: composer: not found",
            "sh: 1: composer: not found",
            "/bin/bash: line 1: exec: composer: not found",
            "bash: line 3: composer: command not found",
            "env: ‘composer’: No such file or directory",
            "/usr/bin/env: 'composer': No such file or directory",
        ] {
            let said = advice(NOT_FOUND, &format!("before\n{line}\nnpm error after"));
            let said = said.unwrap_or_else(|| panic!("{line}"));
            assert!(said.contains("apt install composer"), "{line}: {said}");
        }
    }

    #[test]
    fn the_way_out_is_that_of_the_program() {
        let said = |name: &str| advice(NOT_FOUND, &format!("sh: 1: {name}: not found")).unwrap();
        assert!(said("gunicorn").ends_with("list it in requirements.txt, and push again"));
        assert!(said("puma").contains("Gemfile"));
        assert!(said("bin/start").starts_with("bin/start is not among the files"));
        assert!(said("hugo").contains("start the node with its directory in PATH"));
        assert_eq!(advice("exit status 1", "sh: 1: hugo: not found"), None);
        assert_eq!(advice(NOT_FOUND, "the page was not found"), None);
    }
}
