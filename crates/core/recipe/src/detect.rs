//! The way from a source tree to how it is built, released and run. Knows the order of precedence
//! (flag, our own file, Procfile, detection) and no framework; driven by whatever takes a push.

mod elsewhere;
mod site;

use std::fmt;

use model::application::{STICKY_BALANCE, Settings};
use model::release::{ProcessRecipe, StaticMount, Step};
use model::{ProcessType, Recipe};
use thiserror::Error;

use crate::baked;
use crate::frameworks::{self, Framework, front_end};
use crate::manifest::{self, CORTEX_TOML, Manifest, ManifestError};
use crate::procfile::{self, PROCFILE, Procfile, ProcfileError};
use crate::runtimes;
use crate::source::SourceTree;

/// The variable that says where files outlive releases.
const PERSISTENT_PLACE: &str = "CORTEX_PERSIST";
/// Names of the root in a message: enough of it to recognise one's own mistake by.
const SEEN_MAX: usize = 30;
const SHOWN_CHARS_MAX: usize = 80;

/// Everything that a push of one tree asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub recipe: Recipe,
    pub settings: Settings,
    pub manifest: Manifest,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DetectError {
    #[error("{0}")]
    Nothing(Checklist),
    #[error(
        "there is no application type '{asked}': use one of {}, or leave the type out to have it \
         detected", .known.join(", ")
    )]
    UnknownFramework { asked: String, known: Vec<&'static str> },
    #[error("this looks like {framework}, but {why}")]
    Unusable { framework: &'static str, why: String },
    #[error("{0}")]
    Elsewhere(String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Procfile(#[from] ProcfileError),
    #[error("the Procfile is not UTF-8 text of at most 256 KiB: save it as UTF-8")]
    ProcfileUnreadable,
}

/// What was seen and what would have been recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checklist {
    pub application: String,
    /// The names in the root, at most `SEEN_MAX` of them.
    pub seen: Vec<String>,
    pub more: usize,
    /// What a file says that is of no use here.
    pub hint: Option<String>,
    /// Every framework's name and what it looks for.
    pub recognised: Vec<(&'static str, &'static str)>,
}

impl fmt::Display for Checklist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "it is not clear how to run '{}'.", self.application)?;
        if self.seen.is_empty() {
            writeln!(f, "The directory that was pushed is empty.")?;
        } else {
            writeln!(f, "In the root of what was pushed there is:")?;
            for entry in &self.seen {
                writeln!(f, "    {entry}")?;
            }
            if self.more > 0 {
                writeln!(f, "    and {} more", self.more)?;
            }
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "{hint}")?;
        }
        writeln!(f, "These would be recognised:")?;
        for (name, looks_for) in &self.recognised {
            writeln!(f, "    {name:<10} {looks_for}")?;
        }
        writeln!(f, "Check that")?;
        writeln!(
            f,
            "  1. you pushed the application's own root directory, not one above or below;"
        )?;
        writeln!(f, "  2. the file that tells its type is committed and not ignored;")?;
        writeln!(f, "  3. its name is written exactly as above, in lower and upper case;")?;
        write!(
            f,
            "  4. or say yourself how to start it: a Procfile with the line 'web: COMMAND', where \
             COMMAND listens on $HOST and $PORT."
        )
    }
}

/// Plans a release. `forced` is the type that the user chose; `name_hint` is how messages call the
/// application.
pub fn plan_release(
    tree: &SourceTree,
    forced: Option<&str>,
    name_hint: &str,
) -> Result<Plan, DetectError> {
    let manifest = manifest::read(tree)?;
    let procfile = read_procfile(tree)?;
    let mut recipe = match forced.or(manifest.framework.as_deref()) {
        Some(name) => chosen(tree, name, forced.is_some(), &manifest)?,
        None => detected(tree, &manifest, name_hint)?,
    };
    // Everything else that is done in a build comes before the look at what it left.
    let finding = front_end::take_finding(&mut recipe);
    if let Some(procfile) = procfile {
        apply_procfile(tree, &mut recipe, procfile);
    }
    apply_manifest(tree, &mut recipe, &manifest);
    recipe.bus_variable.clone_from(&manifest.bus);
    recipe.isolation = manifest.isolation.unwrap_or_default();
    recipe.egress = manifest.egress;
    site::apply(&mut recipe, &manifest, finding);
    if let Some(why) = elsewhere::refusal(tree, &recipe) {
        return Err(DetectError::Elsewhere(why));
    }
    recipe.notes.extend(note_of_count(&recipe, &manifest));
    if !recipe.build.is_empty() {
        recipe.baked = baked::variables(tree, &manifest.baked);
    }
    runtimes::add(tree, &mut recipe);
    manifest::ports::check(&recipe.ports, &recipe.processes)
        .map_err(|why| ManifestError { file: CORTEX_TOML, why })?;
    recipe.notes.extend(wide_files(tree));
    let settings = settings(&manifest);
    Ok(Plan { recipe, settings, manifest })
}

/// Returns files in UTF-16. What the platform reads itself it reads in UTF-16, too; others' tools
/// mostly do not.
fn wide_files(tree: &SourceTree) -> Vec<String> {
    let own = [PROCFILE, CORTEX_TOML, manifest::APP_JSON, manifest::VERACONFIG];
    // pip looks at the byte order mark.
    let is_read = |path: &str| own.contains(&path) || path.starts_with("requirements");
    let wide = tree.files.iter().filter(|(path, file)| file.is_wide && !path.contains('/'));
    wide.filter(|(path, _)| !is_read(path))
        .take(SEEN_MAX)
        .map(|(path, _)| {
            format!("{path} is in UTF-16, which most programs do not read: save it as UTF-8")
        })
        .collect()
}

fn read_procfile(tree: &SourceTree) -> Result<Option<Procfile>, DetectError> {
    if !tree.exists(PROCFILE) {
        return Ok(None);
    }
    let text = tree.text(PROCFILE).ok_or(DetectError::ProcfileUnreadable)?;
    Ok(Some(procfile::parse(text)?))
}

fn chosen(
    tree: &SourceTree,
    name: &str,
    by_flag: bool,
    manifest: &Manifest,
) -> Result<Recipe, DetectError> {
    let Some(framework) = frameworks::ALL.iter().find(|framework| framework.name() == name) else {
        let known = frameworks::ALL.iter().map(|framework| framework.name()).collect();
        let asked = name.chars().take(SHOWN_CHARS_MAX).collect();
        return Err(DetectError::UnknownFramework { asked, known });
    };
    let by = match manifest.files.first() {
        _ if by_flag => "the chosen type",
        Some(file) => file,
        None => CORTEX_TOML,
    };
    recipe_of(*framework, tree, format!("{by} says {name}"))
}

fn detected(
    tree: &SourceTree,
    manifest: &Manifest,
    name_hint: &str,
) -> Result<Recipe, DetectError> {
    if manifest.site.is_some()
        && let Some(recipe) = site::of_project(tree, manifest)
    {
        let decided_by = format!("{CORTEX_TOML} says where the site is");
        return Ok(Recipe { decided_by, ..recipe? });
    }
    for framework in frameworks::ALL {
        if let Some(reason) = framework.detect(tree) {
            return recipe_of(*framework, tree, reason);
        }
    }
    let own_commands = manifest.processes.iter().any(|(_, process)| process.command.is_some());
    if own_commands || !manifest.statics.is_empty() || manifest.site.is_some() {
        return Ok(Recipe {
            framework: "procfile".into(),
            decided_by: format!("{CORTEX_TOML} says what runs"),
            ..Recipe::default()
        });
    }
    let mut seen = tree.root_entries();
    let more = seen.len().saturating_sub(SEEN_MAX);
    seen.truncate(SEEN_MAX);
    let shown =
        |name: String| name.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    Err(DetectError::Nothing(Checklist {
        application: shown(name_hint.to_owned()),
        seen: seen.into_iter().map(shown).collect(),
        more,
        hint: elsewhere::container_hint(tree),
        recognised: frameworks::ALL.iter().map(|f| (f.name(), f.looks_for())).collect(),
    }))
}

fn recipe_of(
    framework: &dyn Framework,
    tree: &SourceTree,
    decided_by: String,
) -> Result<Recipe, DetectError> {
    let name = framework.name();
    let recipe = framework
        .recipe(tree)
        .map_err(|error| DetectError::Unusable { framework: name, why: error.0 })?;
    Ok(Recipe { framework: name.into(), decided_by, ..recipe })
}

/// Applies the Procfile, which says what runs; how it is built stays the framework's.
fn apply_procfile(tree: &SourceTree, recipe: &mut Recipe, procfile: Procfile) {
    recipe.notes.extend(procfile.notes);
    if recipe.framework != PROCFILE.to_lowercase() && !procfile.processes.is_empty() {
        recipe.decided_by.push_str("; the Procfile says what runs");
    }
    for (process, command) in procfile.processes {
        let by = (recipe.framework != PROCFILE.to_lowercase()).then_some(PROCFILE);
        set_command(tree, recipe, process, command, by);
    }
    if let Some(command) = procfile.release {
        let step = Step { name: "Running the Procfile's release command".into(), command };
        replace_steps(&mut recipe.release, vec![step], PROCFILE, "release", &mut recipe.notes);
    }
    if let Some(command) = procfile.preflight {
        recipe
            .build
            .push(Step { name: "Running the Procfile's preflight command".into(), command });
    }
    recipe.cron.extend(procfile.cron);
    if let Some(directory) = procfile.static_directory {
        match manifest::relative_path(&directory) {
            Ok(directory) if tree.has_directory(&directory) => {
                let mount = StaticMount { prefix: "/".into(), directory, fallback: None };
                put_statics(recipe, vec![mount], PROCFILE);
            }
            _ => recipe.notes.push(format!(
                "{PROCFILE}: 'static' was ignored: there is no directory '{directory}'"
            )),
        }
    }
}

/// Applies what the project's own file says, which replaces what weaker sources said; lists of
/// paths add up.
fn apply_manifest(tree: &SourceTree, recipe: &mut Recipe, manifest: &Manifest) {
    let file = manifest.files.first().map_or(CORTEX_TOML, String::as_str);
    for (process, wanted) in &manifest.processes {
        if let Some(command) = &wanted.command {
            set_command(tree, recipe, process.clone(), command.clone(), Some(file));
        }
        match recipe.processes.get_mut(process) {
            Some(found) => {
                found.concurrency = wanted.concurrency.or(found.concurrency);
                found.default_count = wanted.count.unwrap_or(found.default_count);
            }
            None => recipe.notes.push(format!(
                "{file}: '{process}' was ignored: it has no command and nothing else defines it"
            )),
        }
    }
    for (key, steps, commands) in [
        ("build", &mut recipe.build, &manifest.build),
        ("release", &mut recipe.release, &manifest.release),
    ] {
        if let Some(commands) = commands {
            let steps_of = |command: &String| Step {
                name: format!(
                    "Running {}",
                    command.chars().take(SHOWN_CHARS_MAX).collect::<String>()
                ),
                command: command.clone(),
            };
            replace_steps(
                steps,
                commands.iter().map(steps_of).collect(),
                file,
                key,
                &mut recipe.notes,
            );
        }
    }
    // What the user's own steps do is not known.
    recipe.portable = match manifest.portable {
        Some(true) => Some(recipe.portable.take().unwrap_or_default()),
        None if manifest.build.is_none() && manifest.predeploy.is_none() => recipe.portable.take(),
        _ => None,
    };
    if let Some(command) = manifest.predeploy.as_ref().filter(|_| manifest.build.is_none()) {
        let name = "Running app.json's predeploy script".into();
        recipe.build.push(Step { name, command: command.clone() });
    }
    if let Some(command) = &manifest.postdeploy {
        let name = "Running app.json's postdeploy script".into();
        recipe.release.push(Step { name, command: command.clone() });
    }
    recipe.environment.extend(manifest.environment.clone());
    // What a framework keeps is a directory wherever its name does not say otherwise.
    for path in recipe.persist.iter_mut().filter(|path| is_bare(path)) {
        path.push('/');
    }
    // The project's own word on the same path comes first.
    let known = std::mem::replace(&mut recipe.persist, manifest.persist.clone());
    manifest::add_persistent(&mut recipe.persist, &known);
    recipe.persist.dedup();
    recipe.keeps_files |= names_persistent_place(tree, recipe);
    recipe.persist_shared = manifest.persist_shared;
    // Entries of the project's own file win over the Procfile's of the same name.
    recipe.cron.retain(|one| manifest.cron.iter().all(|ours| ours.name != one.name));
    recipe.cron.extend(manifest.cron.iter().cloned());
    recipe.ports.clone_from(&manifest.ports);
    recipe.notes.extend(manifest.notes.iter().cloned());
    let ruby = ["rails", "rack"].contains(&recipe.framework.as_str());
    if manifest.server.is_some() && !ruby {
        recipe.notes.push(format!("{file}: server was ignored: it is for rails and rack"));
    }
}

fn is_bare(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    !name.is_empty() && !name.contains('.')
}

/// Returns whether the project names the place where files outlive releases, and so keeps files
/// there.
fn names_persistent_place(tree: &SourceTree, recipe: &Recipe) -> bool {
    let steps = recipe.build.iter().chain(&recipe.release).map(|step| &step.command);
    let commands = recipe.processes.values().map(|process| &process.command);
    let mut own = steps.chain(commands).chain(recipe.environment.values());
    own.any(|text| text.contains(PERSISTENT_PLACE))
        || tree.named("*").any(|(path, file)| {
            let is_prose = path.ends_with(".md") || path.ends_with(".txt");
            let text = file.text.as_deref().filter(|_| !is_prose);
            text.is_some_and(|text| text.contains(PERSISTENT_PLACE))
        })
}

/// Puts mounts before the framework's own. Where nothing runs, these are the site: what was found
/// for the same address is not served behind it.
fn put_statics(recipe: &mut Recipe, new: Vec<StaticMount>, file: &str) {
    if !recipe.processes.contains_key(&ProcessType::web()) {
        let notes = &mut recipe.notes;
        recipe.statics.retain(|old| {
            let by = new.iter().find(|one| one.prefix == old.prefix);
            if let Some(by) = by.filter(|by| by.directory != old.directory) {
                let StaticMount { prefix, directory, .. } = old;
                let new = &by.directory;
                notes.push(format!("{file}: '{prefix}' is '{new}', not '{directory}'"));
            }
            by.is_none()
        });
    }
    recipe.statics.splice(0..0, new);
}

fn replace_steps(
    steps: &mut Vec<Step>,
    new: Vec<Step>,
    file: &str,
    key: &str,
    notes: &mut Vec<String>,
) {
    if !steps.is_empty() {
        let old: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        notes.push(format!("{file}: '{key}' replaces: {}", old.join(", ")));
    }
    *steps = new;
}

/// Sets a command; `by` is the file to be named in a note when it overrides what was found before.
fn set_command(
    tree: &SourceTree,
    recipe: &mut Recipe,
    process: ProcessType,
    command: String,
    by: Option<&str>,
) {
    let framework = frameworks::ALL.iter().find(|framework| framework.name() == recipe.framework);
    if process.is_web()
        && let Some((web, note)) = framework.and_then(|one| one.in_place_of(tree, &command))
    {
        recipe.notes.push(note);
        recipe.processes.insert(process, web);
        return;
    }
    let concurrency =
        if process.is_web() { frameworks::concurrency_of(tree, &command) } else { None };
    if let (Some(old), Some(by)) = (recipe.processes.get(&process), by)
        && old.command != command
    {
        recipe.notes.push(format!("{by}: its '{process}' replaces '{}'", old.command));
    }
    let new = ProcessRecipe { command, concurrency, default_count: frameworks::WEB_COUNT };
    recipe.processes.insert(process, new);
}

/// Returns a note for people who wonder how many instances there are, if their own files do not say
/// it.
fn note_of_count(recipe: &Recipe, manifest: &Manifest) -> Option<String> {
    let (name, web) = recipe.processes.iter().find(|(process, _)| process.is_web())?;
    let said = manifest.processes.get(name).is_some_and(|wanted| wanted.count.is_some());
    match (web.default_count, web.concurrency) {
        _ if said => None,
        (count @ 2.., _) => Some(format!(
            "web starts with {count} instances, as {} keeps its data in a database server; \
             'cortex scale web=1' makes it one",
            recipe.framework
        )),
        (_, Some(1)) => Some(
            "web answers one request at a time, and starts with one instance; 'cortex scale web=4' \
             makes it four, which is right where it keeps nothing in its memory"
                .into(),
        ),
        _ => None,
    }
}

fn settings(manifest: &Manifest) -> Settings {
    let mut settings = Settings::default();
    let health = &manifest.health;
    settings.health.path.clone_from(&health.path);
    settings.health.host.clone_from(&health.host);
    settings.health.headers.clone_from(&health.headers);
    for (value, setting) in [
        (health.start_timeout_ms, &mut settings.health.start_timeout_ms),
        (health.settle_ms, &mut settings.health.settle_ms),
        (health.timeout_ms, &mut settings.health.timeout_ms),
        (health.interval_ms, &mut settings.health.interval_ms),
        (manifest.stop_grace_ms, &mut settings.stop_grace_ms),
    ] {
        *setting = value.unwrap_or(*setting);
    }
    settings.limits.memory_bytes = manifest.memory_bytes;
    settings.limits.concurrency = manifest.concurrency;
    settings.limits.build_memory_bytes = manifest.build_memory_bytes;
    settings.limits.build_cores = manifest.build_cores;
    settings.limits.build_time_ms = manifest.build_time_ms;
    settings.requests = manifest.requests;
    settings.https = manifest.https;
    settings.rollout = manifest.rollout.unwrap_or_default();
    settings.protocol = manifest.protocol.unwrap_or_default();
    if let Some(balance) = &manifest.balance {
        settings.balance.clone_from(balance);
    } else if manifest.sticky.is_some() {
        settings.balance = STICKY_BALANCE.into();
    }
    settings.sticky.clone_from(&manifest.sticky);
    settings.fair = manifest.fair.clone().unwrap_or_default();
    settings.slow_start_ms = manifest.slow_start_ms;
    settings.hedge_after_ms = manifest.hedge_after_ms;
    settings
}
