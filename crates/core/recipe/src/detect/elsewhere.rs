//! What other platforms bring and nothing here does: it is named, with what to write instead.

use model::Recipe;

use crate::source::SourceTree;

const DOCKERFILES: &[&str] = &["Dockerfile", "Containerfile", "docker/Dockerfile"];
const COMPOSE_FILES: &[&str] =
    &["docker-compose.yml", "docker-compose.yaml", "compose.yml", "compose.yaml"];
const SHOWN_CHARS_MAX: usize = 200;

/// Programs of Heroku's buildpacks that start another one, and what does their work here.
const WRAPPERS: &[(&[&str], &str)] = &[
    (
        &["start-nginx", "start-nginx-solo", "start-nginx-debug"],
        "Heroku's nginx, which is not here: the router stands in front of each instance, serves files \
         and holds what waits. Let the program listen on $HOST and $PORT instead of a socket",
    ),
    (
        &["start-pgbouncer", "start-pgbouncer-stunnel", "start-stunnel", "qgtunnel", "qgsocksify"],
        "Heroku's tunnel or pool, which is not here: the program connects by itself, to the address \
         that 'cortex config set' gives it",
    ),
    (&["jemalloc.sh"], "Heroku's jemalloc, which is not here: the program runs without it"),
];

/// Returns why a command cannot run, and what to write instead; `None` if all may.
pub fn refusal(tree: &SourceTree, recipe: &Recipe) -> Option<String> {
    let processes = recipe.processes.iter().map(|(name, one)| (name.as_str(), &one.command));
    let steps = recipe.release.iter().map(|step| ("release", &step.command));
    processes.chain(steps).find_map(|(name, command)| {
        let why = of_command(tree, name, command)?;
        Some(format!("'{name}: {}' calls {why}", shown(command)))
    })
}

fn of_command(tree: &SourceTree, name: &str, command: &str) -> Option<String> {
    let assigns = |word: &&str| {
        word.split_once('=').is_some_and(|(name, _)| !name.contains(['/', '.', '$', '"']))
    };
    let mut words = command.split_whitespace().skip_while(|word| assigns(word) || *word == "exec");
    let called = words.next()?;
    let program = called.rsplit('/').next().unwrap_or(called);
    if tree.exists(called.trim_start_matches("./")) {
        return None;
    }
    let rest = words.collect::<Vec<_>>().join(" ");
    if let Some((_, why)) = WRAPPERS.iter().find(|(names, _)| names.contains(&program)) {
        return Some(match rest.as_str() {
            "" => format!("{why}. Remove the line, or write there the program itself"),
            rest => format!("{why}. Write '{name}: {}'", shown(rest)),
        });
    }
    if program.starts_with("heroku-php-") || program.starts_with("heroku-hhvm-") {
        return Some(
            "Heroku's web server for PHP, which is not here. Remove the line: index.php in public/, \
             web/, www/, htdocs/ or the root is found and served without it. For another directory \
             write 'web: php -S \"$HOST:$PORT\" -t DIRECTORY'"
                .into(),
        );
    }
    match (program, called) {
        ("boot", "bin/boot") => Some(
            "Heroku's server for static files, which is not here. Remove the line: the router serves \
             them; [static] output = \"DIRECTORY\" in cortex.toml says which"
                .into(),
        ),
        ("runsvdir-dyno", _) => Some(
            "Heroku's supervisor, which is not here. Write one line in the Procfile for each of its \
             programs; each is kept alive"
                .into(),
        ),
        ("docker" | "docker-compose" | "podman" | "podman-compose", _) => Some(
            "containers, which are not run here. Write the command that runs inside, as its \
             Dockerfile's CMD says it"
                .into(),
        ),
        _ => None,
    }
}

/// Returns a hint for projects that say only in a container's file how they run.
pub fn container_hint(tree: &SourceTree) -> Option<String> {
    if let Some(file) = DOCKERFILES.iter().find(|file| tree.exists(file)) {
        let text = tree.text(file).unwrap_or_default();
        let command = match container_command(text) {
            Some(command) => format!("Put its command into a Procfile: 'web: {}'", shown(&command)),
            None => "Put the command of its image into a Procfile: 'web: COMMAND'".into(),
        };
        return Some(format!(
            "There is a {file}, and containers are not run here. {command}, listening on $HOST and \
             $PORT. What its RUN lines build belongs into 'build' of cortex.toml; what they install \
             has to be on this machine."
        ));
    }
    let file = COMPOSE_FILES.iter().find(|file| tree.exists(file))?;
    Some(format!(
        "There is a {file}, and containers are not run here. Push the directory of each service that \
         is your own program as an application; 'cortex config set' tells it where databases are."
    ))
}

/// Returns what the last ENTRYPOINT and CMD say, each as a list or as a line for a shell.
fn container_command(text: &str) -> Option<String> {
    let joined = text.replace("\\\n", " ");
    let last = |word: &str| {
        let lines = joined.lines().rev().map(str::trim);
        lines.into_iter().find_map(|line| {
            let (first, rest) = line.split_once(char::is_whitespace)?;
            first.eq_ignore_ascii_case(word).then(|| words(rest.trim()))
        })
    };
    let found: Vec<String> = [last("ENTRYPOINT"), last("CMD")].into_iter().flatten().collect();
    (!found.is_empty()).then(|| found.join(" "))
}

fn words(text: &str) -> String {
    match serde_json::from_str::<Vec<String>>(text) {
        // A shell's own wrapping says nothing.
        Ok(list) if list.len() == 3 && list[0].ends_with("sh") && list[1] == "-c" => {
            list[2].clone()
        }
        Ok(list) => {
            let words = list.iter().map(|word| crate::frameworks::shell_word(word));
            words.collect::<Vec<_>>().join(" ")
        }
        Err(_) => text.to_owned(),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(command: &str, files: &[(&str, &str)]) -> Option<String> {
        of_command(&SourceTree::from_pairs(files.iter().copied()), "web", command)
    }

    #[test]
    fn what_only_another_platform_has_is_said() {
        for (command, expected) in [
            (
                "bin/start-nginx bundle exec puma -C config/puma.rb",
                "Write 'web: bundle exec puma -C",
            ),
            ("A=b exec bin/start-nginx-solo", "Remove the line"),
            ("bin/start-pgbouncer gunicorn a", "Write 'web: gunicorn a'"),
            ("vendor/bin/heroku-php-apache2 public/", "index.php in public/"),
            ("heroku-php-nginx -C nginx.conf", "php -S"),
            ("bin/boot", "[static] output"),
            ("docker-compose up", "containers"),
        ] {
            let found = why(command, &[]).unwrap_or_else(|| panic!("{command} is refused"));
            assert!(found.contains(expected), "{command}: {found}");
        }
        assert_eq!(why("bundle exec puma", &[]), None);
        assert_eq!(why("bin/start-nginx x", &[("bin/start-nginx", "")]), None);
    }

    #[test]
    fn the_command_of_an_image_is_read_off() {
        for (text, expected) in [
            ("FROM node\nCMD [\"npm\", \"start\"]", Some("npm start")),
            ("FROM x\nENTRYPOINT [\"python\"]\nCMD [\"a b.py\"]", Some("python 'a b.py'")),
            ("cmd python app.py \\\n  --x", Some("python app.py    --x")),
            ("CMD [\"/bin/sh\", \"-c\", \"a && b\"]", Some("a && b")),
            ("FROM nginx", None),
        ] {
            assert_eq!(container_command(text).as_deref(), expected, "{text}");
        }
        let tree = SourceTree::from_pairs([("Dockerfile", "CMD ./run")]);
        assert!(container_hint(&tree).unwrap().contains("'web: ./run'"));
        assert_eq!(container_hint(&SourceTree::new()), None);
    }
}
