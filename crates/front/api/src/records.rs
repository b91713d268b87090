//! Cortex's records as the handlers read and write them: the whole state of one application, and
//! what follows from it. Owns no state; the store is passed in.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::remains::Owner;
use model::application::{Holder, KeptEnd};
use model::change::ChangePart;
use model::key::{application_prefix, instances_prefix, prefixes_of};
use model::node::NodeInfo;
use model::record;
use model::{
    ApplicationName, ApplicationSpec, Claim, Incarnation, InstanceId, InstanceState, Isolation,
    NodeId, Outcome, Prefix, ProcessType, Recipe, Release, ReleaseId, Rollout, RolloutPhase,
    Timestamp, TypedKey, Wall,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Api;
use super::problem::Problem;
use api_types::ApplicationRow;
use store::{Entry, Store, readable};

pub type ConfigVariables = BTreeMap<String, String>;

/// All records of one application.
pub struct ApplicationRecords {
    pub name: ApplicationName,
    pub spec: ApplicationSpec,
    pub rollout: Option<Rollout>,
    /// The releases that are kept, oldest first.
    pub releases: Vec<Release>,
    /// The outcomes of releases that failed or were taken back.
    pub outcomes: BTreeMap<ReleaseId, Outcome>,
    pub claims: Vec<(InstanceId, NodeId, Claim)>,
    /// The node that has its persistent files.
    pub holder: Option<Holder>,
    /// The nodes that can build the wall that it asks for; `None` if it asks for none.
    pub walls: Option<BTreeSet<NodeId>>,
}

/// Makes an application under a name that no other one has, and removes what late writes left of
/// earlier ones. The caller holds `Api::changes`.
pub async fn begin(api: &Api, name: &ApplicationName) -> Result<ApplicationRecords, Problem> {
    // Its files, its releases and the roles on it are known by the name: another application would
    // have to destroy them for good, and that is for a person to say.
    if let Some((_, end)) = kept(&*api.store, name).await? {
        let what = format!("'{name}' was destroyed, and is kept until {} UTC", end.until.date());
        return Err(Problem::conflict("name_kept", what).hint(format!(
            "bring it back with `cortex apps restore {name}`; or have the name free, and what is kept \
             lost: `cortex apps destroy {name} --now`"
        )));
    }
    let remains = agent::remains::read(&*api.store, name).await;
    let remains = remains.map_err(|error| Problem::internal(format!("{error:#}")))?;
    if remains.owner() != Owner::Nobody {
        let what = format!("the records of '{name}' are being put right after the network was cut");
        return Err(Problem::conflict("being_restored", what).hint("try again in a few seconds"));
    }
    for prefix in prefixes_of(name) {
        for key in api.store.keys(&prefix).await? {
            api.store.delete(key).await?;
        }
    }
    // An application is known by this instant, which no earlier one of its name may have had.
    let mut now = api.now();
    while remains.destroyed.contains(&now) {
        now = Timestamp(now.0 + 1);
    }
    Ok(ApplicationRecords::new(name.clone(), now))
}

pub async fn read<T: DeserializeOwned>(
    store: &dyn Store,
    key: TypedKey,
) -> Result<Option<T>, Problem> {
    let key = key.key();
    match store.lookup(&key).await? {
        None => Ok(None),
        Some(entry) => entry.value.record().map(Some).map_err(|error| {
            Problem::internal(format!("'{key}': {error:#}"))
                .hint(format!("look at it with `cortex store get '{key}'`"))
        }),
    }
}

/// Returns all records below a prefix that can be read, under what `named` makes of their keys.
pub async fn all<K, T: DeserializeOwned>(
    store: &dyn Store,
    prefix: &Prefix,
    named: impl Fn(TypedKey) -> Option<K>,
) -> Result<Vec<(K, T)>, Problem> {
    let entries = store.prefix(prefix).await?;
    let record = |entry: &Entry| {
        let name = TypedKey::parse(&entry.key).and_then(&named)?;
        Some((name, readable(&entry.key, Some(&entry.value))?))
    };
    Ok(entries.iter().filter_map(record).collect())
}

pub async fn write<T: Serialize>(
    store: &dyn Store,
    key: TypedKey,
    value: &T,
) -> Result<(), Problem> {
    store.set(key.key(), record::encode(value).into()).await?;
    Ok(())
}

pub async fn config(store: &dyn Store, app: &ApplicationName) -> Result<ConfigVariables, Problem> {
    Ok(read(store, TypedKey::Config(app.clone())).await?.unwrap_or_default())
}

pub async fn names(store: &dyn Store) -> Result<Vec<ApplicationName>, Problem> {
    let prefix = "app".parse().map_err(|_| Problem::internal("the prefix 'app' is no prefix"))?;
    let mut names = Vec::new();
    for key in store.keys(&prefix).await? {
        let Some(TypedKey::Spec(app)) = TypedKey::parse(&key) else { continue };
        let entry = store.lookup(&key).await?;
        let spec: Option<ApplicationSpec> =
            entry.as_ref().and_then(|entry| readable(&key, Some(&entry.value)));
        // One that cannot be read is there all the same, and says so where it is asked for.
        if spec.is_none_or(|spec| spec.end.is_none()) {
            names.push(app);
        }
    }
    Ok(names)
}

/// Returns the specification of an application that was destroyed and can be brought back.
pub async fn kept(
    store: &dyn Store,
    name: &ApplicationName,
) -> Result<Option<(ApplicationSpec, KeptEnd)>, Problem> {
    let spec: Option<ApplicationSpec> = read(store, TypedKey::Spec(name.clone())).await?;
    let Some(spec) = spec else { return Ok(None) };
    match spec.end.clone() {
        Some(end) if !is_over(store, name, &spec).await? => Ok(Some((spec, end))),
        _ => Ok(None),
    }
}

/// Returns the names of all applications that were destroyed and can be brought back.
pub async fn names_kept(
    store: &dyn Store,
) -> Result<Vec<(ApplicationName, ApplicationSpec, KeptEnd)>, Problem> {
    let prefix = "app".parse().map_err(|_| Problem::internal("the prefix 'app' is no prefix"))?;
    let mut all = Vec::new();
    for key in store.keys(&prefix).await? {
        let Some(TypedKey::Spec(name)) = TypedKey::parse(&key) else { continue };
        if let Some((spec, end)) = kept(store, &name).await? {
            all.push((name, spec, end));
        }
    }
    Ok(all)
}

pub async fn find(
    store: &dyn Store,
    name: &ApplicationName,
) -> Result<Option<ApplicationRecords>, Problem> {
    let spec: Option<ApplicationSpec> = read(store, TypedKey::Spec(name.clone())).await?;
    let Some(spec) = spec.and_then(ApplicationSpec::unless_ended) else { return Ok(None) };
    if is_over(store, name, &spec).await? {
        return Ok(None);
    }
    Ok(Some(with_spec(store, name, spec).await?))
}

/// Returns all records of the application that this specification is of.
pub async fn with_spec(
    store: &dyn Store,
    name: &ApplicationName,
    spec: ApplicationSpec,
) -> Result<ApplicationRecords, Problem> {
    let mut app = ApplicationRecords::new(name.clone(), spec.created_at);
    app.spec = spec;
    for entry in store.prefix(&application_prefix(name)).await? {
        match TypedKey::parse(&entry.key) {
            Some(TypedKey::Rollout(_)) => app.rollout = readable(&entry.key, Some(&entry.value)),
            Some(TypedKey::Holder(_)) => {
                let holder: Option<Holder> = readable(&entry.key, Some(&entry.value));
                app.holder = holder.filter(|holder| holder.is_of(app.spec.created_at));
            }
            Some(TypedKey::Release(..)) => {
                // A release of an earlier application of this name may arrive late, from a node
                // that was cut off.
                let release: Option<Release> = readable(&entry.key, Some(&entry.value));
                app.releases.extend(release.filter(|release| app.spec.owns(release)));
            }
            Some(TypedKey::Outcome(_, id)) => {
                let outcome = readable(&entry.key, Some(&entry.value));
                app.outcomes.extend(outcome.map(|outcome| (id, outcome)));
            }
            _ => {}
        }
    }
    app.releases.sort_by(|a, b| a.id.cmp(&b.id));
    app.claims = claims(store, name).await?;
    if let Some(wall) = app.serving().or(app.current()).and_then(|release| app.wall_of(release)) {
        app.walls = Some(able_to_build(store, wall).await?);
    }
    Ok(app)
}

async fn able_to_build(store: &dyn Store, wall: Wall) -> Result<BTreeSet<NodeId>, Problem> {
    let named = |key| if let TypedKey::NodeInfo(node) = key { Some(node) } else { None };
    let infos: Vec<(NodeId, NodeInfo)> = of_nodes(store, named).await?;
    let able = infos.into_iter().filter(|(_, info)| info.can_build(Some(wall)));
    Ok(able.map(|(node, _)| node).collect())
}

/// Returns the records of one kind that nodes write of themselves.
pub async fn of_nodes<T: DeserializeOwned>(
    store: &dyn Store,
    named: impl Fn(TypedKey) -> Option<NodeId>,
) -> Result<Vec<(NodeId, T)>, Problem> {
    let prefix = "node".parse().map_err(|_| Problem::internal("the prefix 'node' is no prefix"))?;
    all(store, &prefix, named).await
}

/// Returns the claims of an application in the order of their slots.
pub async fn claims(
    store: &dyn Store,
    name: &ApplicationName,
) -> Result<Vec<(InstanceId, NodeId, Claim)>, Problem> {
    let mut claims = Vec::new();
    for entry in store.prefix(&instances_prefix(name)).await? {
        if let Some(TypedKey::Claim(id, node)) = TypedKey::parse(&entry.key)
            && let Some(claim) = readable(&entry.key, Some(&entry.value))
        {
            claims.push((id, node, claim));
        }
    }
    claims.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    Ok(claims)
}

/// Returns the application, or a 404 that names the nearest one.
pub async fn require(store: &dyn Store, name: &str) -> Result<ApplicationRecords, Problem> {
    let name: ApplicationName = name.parse()?;
    if let Some(app) = find(store, &name).await? {
        return Ok(app);
    }
    if let Some((_, end)) = kept(store, &name).await? {
        return Err(is_kept(&name, &end));
    }
    let names = names(store).await?;
    Err(no_application(&name, names.iter().map(ApplicationName::as_str)))
}

/// Returns the 404 of an application that was destroyed and can be brought back.
fn is_kept(name: &ApplicationName, end: &KeptEnd) -> Problem {
    let KeptEnd { at, until, by } = end;
    let (at, until) = (at.date(), until.date());
    Problem::missing("application_kept", format!("{by} destroyed '{name}' at {at} UTC"))
        .hint(format!("it is kept until {until} UTC: `cortex apps restore {name}` brings it back"))
}

/// Returns the 404 of an application that is not there, or not for whoever asks; it names the
/// nearest one of those that they see.
pub fn no_application<'a>(
    name: &ApplicationName,
    visible: impl Iterator<Item = &'a str>,
) -> Problem {
    let hint = match nearest(name.as_str(), visible) {
        Some(near) => format!("did you mean '{near}'? `cortex apps` lists all"),
        None => "`cortex push -a NAME` makes one; `cortex apps` lists all".into(),
    };
    Problem::missing("no_application", format!("there is no application '{name}'")).hint(hint)
}

/// Returns the time when the application was made that has this name; `None` if none has it.
pub async fn created_at(
    store: &dyn Store,
    name: &ApplicationName,
) -> Result<Option<Timestamp>, Problem> {
    let spec: Option<ApplicationSpec> = read(store, TypedKey::Spec(name.clone())).await?;
    match spec.and_then(ApplicationSpec::unless_ended) {
        Some(spec) if !is_over(store, name, &spec).await? => Ok(Some(spec.created_at)),
        _ => Ok(None),
    }
}

/// Returns whether it was destroyed: a node that was cut off may have changed it, unaware of that,
/// and what it wrote is being removed.
async fn is_over(
    store: &dyn Store,
    name: &ApplicationName,
    spec: &ApplicationSpec,
) -> Result<bool, Problem> {
    let end = TypedKey::Destroyed(name.clone(), spec.created_at).key();
    Ok(store.lookup(&end).await?.is_some())
}

/// Returns the closest name in `known` that a typing mistake may have missed.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let tolerated = word.len() / 3 + 1;
    known
        .map(|name| (distance(word, name), name))
        .filter(|(distance, name)| *distance <= tolerated || name.starts_with(word))
        .min()
        .map(|(_, name)| name)
}

/// Returns the Levenshtein distance, by bytes: names are ASCII.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

impl ApplicationRecords {
    pub fn new(name: ApplicationName, now: Timestamp) -> ApplicationRecords {
        ApplicationRecords {
            name,
            spec: ApplicationSpec::new(now),
            rollout: None,
            releases: Vec::new(),
            outcomes: BTreeMap::new(),
            claims: Vec::new(),
            holder: None,
            walls: None,
        }
    }

    /// Drops the claims of nodes that are not there: what they reported last of their instances
    /// means nothing now.
    pub fn without_lost(mut self, api: &Api) -> ApplicationRecords {
        self.claims.retain(|(_, node, _)| !api.is_lost(node));
        self
    }

    pub fn release(&self, id: &ReleaseId) -> Option<&Release> {
        self.releases.iter().find(|release| release.id == *id)
    }

    pub fn serving(&self) -> Option<&Release> {
        self.release(self.rollout.as_ref()?.serving.as_ref()?)
    }

    /// Returns the release that is asked for: the newest target, or the serving release if the
    /// target failed.
    pub fn current(&self) -> Option<&Release> {
        let rollout = self.rollout.as_ref()?;
        match (&rollout.phase, &rollout.target) {
            (RolloutPhase::Failed, _) => self.serving(),
            (_, Some(target)) => self.release(target),
            (_, None) => None,
        }
    }

    /// Returns the wall that a release of it is behind, whenever it was made.
    pub fn wall_of(&self, release: &Release) -> Option<Wall> {
        release.recipe.wall_behind(self.spec.isolation.as_ref())
    }

    pub fn isolation_of(&self, release: &Release) -> Isolation {
        self.recipe_of(release).isolation
    }

    /// Returns the recipe of a release as it is run.
    pub fn recipe_of(&self, release: &Release) -> Recipe {
        let mut recipe = release.recipe.clone();
        recipe.put_behind(self.spec.isolation.as_ref());
        recipe
    }

    /// Returns what a new release changes: it is to take the place of the one that serves.
    pub fn change_to(&self, next: &ReleaseId, note: &str) -> ChangePart {
        let serving = self.rollout.as_ref().and_then(|rollout| rollout.serving.clone());
        ChangePart::Release { before: serving, after: next.clone(), note: note.into() }
    }

    /// Returns `v7`, or `v7.NODE` if two were made apart with the same number.
    pub fn label(&self, id: &ReleaseId) -> String {
        let alone = self.releases.iter().all(|one| one.id.number != id.number || one.id == *id);
        if alone { id.short() } else { id.to_string() }
    }

    pub fn wanted(&self, release: &Release) -> BTreeMap<ProcessType, u32> {
        self.wanted_of(&release.recipe)
    }

    pub fn wanted_of(&self, recipe: &Recipe) -> BTreeMap<ProcessType, u32> {
        let count = |(process, recipe): (&ProcessType, &model::release::ProcessRecipe)| {
            let chosen = self.spec.processes.get(process).map(|spec| spec.count);
            (process.clone(), chosen.unwrap_or(recipe.default_count))
        };
        recipe.processes.iter().map(count).collect()
    }

    /// Counts the slots with a ready process of this release.
    pub fn ready(&self, release: &ReleaseId, process: Option<&ProcessType>) -> u32 {
        let ready = |claim: &Claim| {
            claim
                .incarnations
                .iter()
                .any(|one| one.release == *release && one.state == InstanceState::Ready)
        };
        let slots = self
            .claims
            .iter()
            .filter(|(id, _, claim)| process.is_none_or(|p| *p == id.process) && ready(claim))
            .count();
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Counts the ready processes of this release by node.
    pub fn ready_by_node(
        &self,
        release: &ReleaseId,
        process: &ProcessType,
    ) -> BTreeMap<String, u32> {
        let mut nodes = BTreeMap::new();
        for (id, node, one) in self.incarnations() {
            let counts = one.release == *release && one.state == InstanceState::Ready;
            if counts && id.process == *process {
                *nodes.entry(node.to_string()).or_default() += 1;
            }
        }
        nodes
    }

    /// Returns the incarnations that are alive, and the last one of a slot in which none is.
    pub fn incarnations(&self) -> impl Iterator<Item = (&InstanceId, &NodeId, &Incarnation)> {
        self.claims.iter().flat_map(|(id, node, claim)| {
            let last = claim.incarnations.len().saturating_sub(1);
            claim
                .incarnations
                .iter()
                .enumerate()
                .filter(move |(i, one)| *i == last || is_alive(one.state))
                .map(move |(_, one)| (id, node, one))
        })
    }

    pub fn is_anything_alive(&self) -> bool {
        self.incarnations().any(|(_, _, one)| is_alive(one.state))
    }

    /// Returns the port at which HTTP is answered while that release serves.
    pub fn port_of(&self, release: Option<&Release>) -> Option<u16> {
        self.spec.port_with(release.map(|release| &release.settings))
    }

    pub fn url(&self, host: &str) -> Option<String> {
        let release = self.current().or(self.serving())?;
        let web = release.recipe.processes.keys().any(ProcessType::is_web);
        let answers = web || !release.recipe.statics.is_empty();
        self.port_of(Some(release)).filter(|_| answers).map(|port| format!("http://{host}:{port}"))
    }

    /// Returns the node whose files it needs, as long as it needs them.
    pub fn tied_to(&self) -> Option<&NodeId> {
        let tied = |release: &Release| release.recipe.is_tied();
        let tied = self.serving().is_some_and(tied) || self.current().is_some_and(tied);
        self.holder.as_ref().map(|holder| &holder.node).filter(|_| tied)
    }

    /// Returns the state in words; `lost` tells whether a node is not there.
    pub fn state(&self, lost: impl Fn(&NodeId) -> bool) -> String {
        if let Some(holder) = self.tied_to().filter(|holder| lost(holder)) {
            return format!("waiting: {holder} holds its data");
        }
        let Some(rollout) = &self.rollout else {
            return "no release".into();
        };
        if !matches!(rollout.phase, RolloutPhase::Done | RolloutPhase::Failed) {
            return phase_word(rollout.phase).into();
        }
        let Some(serving) = self.serving() else {
            let failed = rollout.phase == RolloutPhase::Failed;
            return if failed { "failed" } else { "no release" }.into();
        };
        let wanted: u32 = self.wanted(serving).values().sum();
        let ready = self.ready(&serving.id, None);
        if ready < wanted && self.walls.as_ref().is_some_and(|able| able.iter().all(lost)) {
            return "waiting: no node that is there can build its wall".into();
        }
        let word = match (wanted, ready) {
            (0, _) if serving.recipe.statics.is_empty() => "scaled to zero",
            (wanted, ready) if ready >= wanted => "running",
            (_, 0) => "down",
            _ => "degraded",
        };
        word.into()
    }

    pub fn row(&self, api: &Api) -> ApplicationRow {
        let release = self.serving().or(self.current());
        ApplicationRow {
            name: self.name.to_string(),
            framework: release
                .or(self.releases.last())
                .map(|release| release.recipe.framework.clone())
                .or(self.spec.framework.clone()),
            release: self.serving().map(|release| self.label(&release.id)),
            state: self.state(|node| api.is_lost(node)),
            ready: self.serving().map_or(0, |release| self.ready(&release.id, None)),
            wanted: release.map_or(0, |release| self.wanted(release).values().sum()),
            port: self.port_of(self.serving()),
            url: self.url(&api.url_host()),
            created_at: rfc3339(self.spec.created_at),
            maintenance_since: self.spec.maintenance.map(rfc3339),
            password_since: self.spec.password.as_ref().map(|password| rfc3339(password.since)),
        }
    }
}

pub fn is_alive(state: InstanceState) -> bool {
    matches!(state, InstanceState::Starting | InstanceState::Ready | InstanceState::Draining)
}

pub fn phase_word(phase: RolloutPhase) -> &'static str {
    match phase {
        RolloutPhase::Requested => "requested",
        RolloutPhase::Building => "building",
        RolloutPhase::Releasing => "releasing",
        RolloutPhase::Starting => "starting",
        RolloutPhase::Done => "done",
        RolloutPhase::Failed => "failed",
    }
}

pub fn state_word(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Starting => "starting",
        InstanceState::Ready => "ready",
        InstanceState::Draining => "draining",
        InstanceState::Stopped => "stopped",
        InstanceState::Crashed => "crashed",
    }
}

pub fn rfc3339(at: Timestamp) -> String {
    let nanoseconds = i128::from(at.0) * 1_000_000;
    time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known = ["hello", "shop", "shop-admin"];
        for (word, expected) in
            [("helo", Some("hello")), ("shop-admni", Some("shop-admin")), ("zzzzzz", None)]
        {
            assert_eq!(nearest(word, known.into_iter()), expected, "{word}");
        }
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(rfc3339(Timestamp(0)), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(Timestamp(1_500)), "1970-01-01T00:00:01.5Z");
        assert!(!rfc3339(Timestamp(u64::MAX)).is_empty());
    }
}
