//! The choice of this machine's interpreters for a build: what the project's files ask for, against
//! what is installed here. The choice lies beside what was built, so that it starts with the same
//! one, and where no application can change it: a wall shows what was chosen.

mod find;

use std::path::{Path, PathBuf};

use agent_core::application::StepFailure;
use anyhow::Context;
use model::release::Runtime;
use model::{ApplicationName, Release};
use recipe_core::runtimes::{self, Language};
use recipe_core::versions::ProgramVersion;

use self::find::Installed;
use super::{Preparer, failure};
use os::platform_log;

/// The suffix of the file beside the build's directory with the choice: the node, then what comes
/// first in `PATH`, line by line.
pub(super) const CHOICE: &str = ".runtimes";
/// The maximum number of versions that are shown; a longer list helps nobody.
const SHOWN_MAX: usize = 8;

/// One language's part of the choice.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    /// The program; `None` where the search path decides and there is only something to say.
    program: Option<PathBuf>,
    version: Option<ProgramVersion>,
    /// The lines for the build's log.
    said: Vec<String>,
}

impl Preparer {
    /// Chooses interpreters before anything is installed, and says in the build's log what was
    /// chosen.
    pub(super) async fn choose_runtimes(
        &self,
        application: &ApplicationName,
        release: &Release,
        directory: &Path,
    ) -> Result<(), StepFailure> {
        let (entries, said) = self.chosen(application, release).await?;
        let log = self.layout.build_log(application, &release.id);
        for line in said {
            platform_log::append(&log, self.clock.now(), &line);
        }
        self.keep_choice(directory, &entries).map_err(failure("choosing the interpreter"))
    }

    /// Returns the directories that come before the node's own search path.
    pub(super) async fn runtime_path(
        &self,
        application: &ApplicationName,
        release: &Release,
        directory: &Path,
    ) -> anyhow::Result<Vec<String>> {
        if release.recipe.runtimes.is_empty() {
            return Ok(Vec::new());
        }
        let node = self.node.to_string();
        if let Ok(text) = std::fs::read_to_string(choice(directory))
            && let Some((_, entries)) = text.split_once('\n').filter(|(by, _)| *by == node)
        {
            return Ok(entries.lines().map(str::to_owned).collect());
        }
        // It was built elsewhere, or before there were such choices.
        let chosen = self.chosen(application, release).await;
        let (entries, _) = chosen.map_err(|failure| anyhow::anyhow!(failure.why))?;
        self.keep_choice(directory, &entries)?;
        Ok(entries)
    }

    fn keep_choice(&self, directory: &Path, entries: &[String]) -> anyhow::Result<()> {
        if !directory.is_dir() {
            return Ok(());
        }
        let path = choice(directory);
        let text = format!("{}\n{}", self.node, entries.join("\n"));
        std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    async fn chosen(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> Result<(Vec<String>, Vec<String>), StepFailure> {
        let wishes = release.recipe.runtimes.clone();
        if wishes.is_empty() {
            return Ok(Default::default());
        }
        let links = self.layout.application(application).join("runtimes");
        let (path, homes) = (self.node_path().to_owned(), self.homes.clone());
        let choosing =
            runtime::task::spawn_blocking(move || choose_all(&wishes, &path, &homes, &links));
        choosing.await.map_err(|error| failure("choosing the interpreter")(error.into()))?
    }
}

/// Returns the file with the choice for what was built in `directory`.
pub(super) fn choice(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(CHOICE);
    name.into()
}

fn choose_all(
    wishes: &[Runtime],
    path: &str,
    homes: &[PathBuf],
    links: &Path,
) -> Result<(Vec<String>, Vec<String>), StepFailure> {
    let (mut entries, mut said) = (Vec::<String>::new(), Vec::new());
    for language in runtimes::LANGUAGES {
        let wishes: Vec<&Runtime> =
            wishes.iter().filter(|wish| wish.language == language.name()).collect();
        if wishes.is_empty() {
            continue;
        }
        // npm belongs to the Node.js that was chosen before it.
        let path = [&entries[..], &[path.to_owned()]].concat().join(":");
        let mut programs = find::programs(*language, &path, homes);
        let is_asked = wishes.iter().any(|wish| !wish.wanted.is_empty());
        if !is_asked || *language == Language::Npm {
            programs.truncate(1);
        }
        let installed = match is_asked {
            true => programs.iter().filter_map(|program| find::ask(*language, program)).collect(),
            false => Vec::new(),
        };
        let choice = match is_asked {
            true => choose(*language, &wishes, &installed)?,
            false => any(*language, programs)?,
        };
        said.extend(choice.said);
        let Some(program) = choice.program else { continue };
        let version = choice.version.map_or("any".into(), |version| version.to_string());
        let links = links.join(format!("{}-{version}", language.name()));
        let entry = find::entry(*language, &program, &path, &links)
            .with_context(|| format!("{} cannot be made", links.display()))
            .map_err(failure("choosing the interpreter"))?;
        if let Some(entry) = entry {
            entries.insert(0, entry.display().to_string());
        }
    }
    Ok((entries, said))
}

fn any(language: Language, programs: Vec<PathBuf>) -> Result<Choice, StepFailure> {
    match programs.into_iter().next() {
        Some(program) => Ok(Choice { program: Some(program), version: None, said: Vec::new() }),
        None => Err(missing(format!(
            "{} is needed, and there is none on this machine: {}",
            language.title(),
            how_to_get(language, "")
        ))),
    }
}

/// Chooses among `installed`, whose first is used where nothing is asked for. That one is kept
/// where it fits, else the newest that does.
fn choose(
    language: Language,
    wishes: &[&Runtime],
    installed: &[Installed],
) -> Result<Choice, StepFailure> {
    let fits = |wish: &Runtime, one: &Installed| runtimes::fits(language, wish, &one.version);
    let required = || wishes.iter().filter(|wish| wish.is_required);
    let usable: Vec<&Installed> =
        installed.iter().filter(|one| required().all(|wish| fits(wish, one))).collect();
    let mut best: Option<&Installed> = None;
    for one in usable {
        // Wishes count in their order: the first one that only one of the two grants decides.
        let grants =
            |one: &Installed| wishes.iter().map(|wish| fits(wish, one)).collect::<Vec<_>>();
        let better = best.is_none_or(|best| {
            let (new, old) = (grants(one), grants(best));
            let is_default = installed.first() == Some(best);
            new > old || (new == old && !is_default && one.version > best.version)
        });
        if better {
            best = Some(one);
        }
    }
    let title = language.title();
    let Some(best) = best else {
        if required().next().is_none() {
            let asked = names(wishes.iter().copied());
            let said = vec![format!("       {asked} {title}, and there is none on this machine")];
            return Ok(Choice { program: None, version: None, said });
        }
        return Err(missing(refusal(
            language,
            &required().copied().collect::<Vec<_>>(),
            installed,
        )));
    };
    let (granted, refused): (Vec<&Runtime>, Vec<&Runtime>) =
        wishes.iter().copied().partition(|wish| fits(wish, best));
    let place = best.program.display();
    let mut said = vec![match granted.is_empty() {
        true => format!("-----> {title} {} ({place})", best.version),
        false => {
            let files: Vec<&str> = granted.iter().map(|wish| wish.said_by.as_str()).collect();
            let verb = if files.len() == 1 { "asks" } else { "ask" };
            format!("-----> {title} {} ({place}), as {} {verb}", best.version, files.join(" and "))
        }
    }];
    if let Some(wish) = refused.first() {
        said.push(format!(
            " !     {}, and this machine has {}: it goes on with {}. To change that, {}",
            names(refused.iter().copied()),
            shown(installed),
            best.version,
            how_to_get(language, &wish.wanted)
        ));
    }
    Ok(Choice { program: Some(best.program.clone()), version: Some(best.version.clone()), said })
}

/// Returns text like "engines in package.json asks for 22.x, .nvmrc asks for v22.1.0".
fn names<'a>(wishes: impl Iterator<Item = &'a Runtime>) -> String {
    let one = |wish: &Runtime| format!("{} asks for {}", wish.said_by, wish.wanted);
    wishes.map(one).collect::<Vec<_>>().join(", ")
}

fn shown(installed: &[Installed]) -> String {
    let one = |one: &Installed| format!("{} ({})", one.version, one.program.display());
    let mut all: Vec<String> = installed.iter().take(SHOWN_MAX).map(one).collect();
    if installed.len() > SHOWN_MAX {
        all.push(format!("{} more", installed.len() - SHOWN_MAX));
    }
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn refusal(language: Language, required: &[&Runtime], installed: &[Installed]) -> String {
    let fits =
        |wish: &&&Runtime| installed.iter().any(|one| runtimes::fits(language, wish, &one.version));
    // The wish that nothing here grants is the most telling.
    let unmet = required.iter().find(|wish| !fits(wish));
    let wishes = unmet.map_or(required.to_vec(), |wish| vec![*wish]);
    let title = language.title();
    format!(
        "{title}: {}; this machine has {}. {}, or change the file, and push again",
        names(wishes.iter().copied()),
        shown(installed),
        capitalised(&how_to_get(language, wishes.first().map_or("", |wish| &wish.wanted)))
    )
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + chars.as_str())
        .unwrap_or_default()
}

/// Returns what to install as the node's user; interpreters installed like this are found.
fn how_to_get(language: Language, wanted: &str) -> String {
    let numbers = wanted.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let version = numbers.map(|n| n.trim_matches('.')).find(|n| !n.is_empty()).unwrap_or("VERSION");
    match language {
        Language::Python => {
            format!(
                "install it as the node's user ('pyenv install {version}', 'uv python install {version}')"
            )
        }
        Language::Ruby => {
            format!(
                "install it as the node's user ('rbenv install {version}', 'mise install ruby@{version}')"
            )
        }
        Language::Node => format!(
            "install it as the node's user ('nvm install {version}'), or unpack it as \
             /opt/node-{version}"
        ),
        Language::Npm => "take a Node.js that brings it".into(),
        Language::Php => {
            format!("install the package php{version}-cli, or unpack it in /opt/php-{version}")
        }
        Language::Go => format!("unpack it as ~/sdk/go{version} of the node's user"),
        Language::Rust => {
            format!("install it as the node's user ('rustup toolchain install {version}')")
        }
        Language::Java => "install its package, or unpack it in /usr/lib/jvm".into(),
        Language::Elixir => {
            format!("install it as the node's user ('mise install elixir@{version}')")
        }
    }
}

/// Returns a failure about a missing tool, which another node of the cluster may have.
fn missing(why: String) -> StepFailure {
    StepFailure { why, lacks_tool: true, ..StepFailure::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(versions: &[&str]) -> Vec<Installed> {
        let one = |text: &&str| Installed {
            version: ProgramVersion::parse(text).unwrap(),
            program: format!("/opt/{text}/bin/x").into(),
        };
        versions.iter().map(one).collect()
    }

    fn wish(wanted: &str, said_by: &str, is_required: bool) -> Runtime {
        Runtime {
            wanted: wanted.into(),
            said_by: said_by.into(),
            is_required,
            ..Runtime::default()
        }
    }

    fn chosen(wishes: &[Runtime], versions: &[&str]) -> Result<Choice, StepFailure> {
        let wishes: Vec<&Runtime> = wishes.iter().collect();
        choose(Language::Python, &wishes, &installed(versions))
    }

    #[test]
    fn the_usual_interpreter_is_kept_if_it_fits_else_the_newest_that_does() {
        let pick = |wanted: &str, versions: &[&str]| {
            let choice = chosen(&[wish(wanted, "f", true)], versions).unwrap();
            choice.version.unwrap().to_string()
        };
        assert_eq!(pick(">=3.9", &["3.11.2", "3.13.0"]), "3.11.2");
        assert_eq!(pick(">=3.12", &["3.11.2", "3.12.1", "3.13.0"]), "3.13.0");
        assert_eq!(pick("3.9", &["3.11.2", "3.9.1", "3.9.18", "3.10.0"]), "3.9.18");
    }

    #[test]
    fn a_missing_interpreter_names_the_wish_the_machine_and_the_way_out() {
        let wishes = [wish(">=3.6", "setup.py", true), wish("3.9.1", ".python-version", true)];
        let failure = chosen(&wishes, &["3.11.2", "3.9.18"]).unwrap_err();
        assert!(failure.lacks_tool, "another node may have it");
        for words in [
            ".python-version asks for 3.9.1;",
            "3.11.2 (/opt/3.11.2/bin/x), 3.9.18",
            "pyenv install 3.9.1",
        ] {
            assert!(failure.why.contains(words), "{}", failure.why);
        }
        assert!(!failure.why.contains("setup.py"), "{}", failure.why);
        let both = [wish("3.9", "a", true), wish("3.11", "b", true)];
        let failure = chosen(&both, &["3.11.2", "3.9.18"]).unwrap_err();
        assert!(failure.why.contains("a asks for 3.9, b asks for 3.11;"), "{}", failure.why);
    }

    #[test]
    fn a_mere_wish_is_granted_if_possible_and_remarked_on_if_not() {
        let wishes = [wish("22.x", "engines", false), wish("22.1.0", ".nvmrc", false)];
        let choice = chosen(&wishes, &["18.19.0", "22.1.0", "22.9.0"]).unwrap();
        assert_eq!(choice.version.unwrap().to_string(), "22.1.0");
        assert!(choice.said[0].ends_with("as engines and .nvmrc ask"), "{:?}", choice.said);
        let choice = chosen(&wishes, &["18.19.0", "20.0.0"]).unwrap();
        assert_eq!(choice.version.unwrap().to_string(), "18.19.0");
        assert!(choice.said[1].contains("engines asks for 22.x, .nvmrc asks for 22.1.0"));
        assert!(choice.said[1].contains("goes on with 18.19.0"), "{:?}", choice.said);
        let none = chosen(&wishes, &[]).unwrap();
        assert_eq!(none.program, None);
        assert!(none.said[0].contains("none on this machine"), "{:?}", none.said);
    }

    #[test]
    fn without_a_wish_nothing_is_asked_and_nothing_said() {
        let wish = Runtime { language: "python".into(), is_required: true, ..Runtime::default() };
        let links = tempfile::tempdir().unwrap();
        let (entries, said) = choose_all(&[wish], "/usr/bin:/bin", &[], links.path()).unwrap();
        assert!(entries.is_empty() && said.is_empty(), "{entries:?} {said:?}");
        assert!(any(Language::Python, Vec::new()).unwrap_err().why.contains("is needed"));
    }
}
