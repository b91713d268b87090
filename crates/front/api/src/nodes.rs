//! The nodes of the cluster as people see them. Reads the roster and what each node reports of
//! itself; what people change is in `changes`.

pub mod changes;

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::{Path, State};
use model::application::Holder;
use model::node::{Drained, Feature, Member, NodeAddress, NodeInfo, NodeLoad};
use model::role::Role;
use model::{
    ApplicationName, ApplicationSpec, Claim, Key, NodeId, Prefix, Timestamp, TypedKey, Wall,
};
use serde::de::DeserializeOwned;

use super::problem::Problem;
use super::{Api, Shared, processes, records, sessions};
use api_types::{NodeRow, NodeShown};
use cluster::peers::Peers;
use cluster::roster;
use runtime::members::Members;
use store::{Store, readable};

pub async fn list(State(api): State<Shared>) -> Result<Json<Vec<NodeRow>>, Problem> {
    Ok(Json(ClusterView::read(&api).await?.rows()))
}

pub async fn show(
    State(api): State<Shared>,
    Path(who): Path<String>,
) -> Result<Json<NodeShown>, Problem> {
    let cluster = ClusterView::read(&api).await?;
    let id = cluster.find(&who)?;
    Ok(Json(shown(&api, &cluster, &id).await?))
}

pub(super) async fn shown(
    api: &Api,
    cluster: &ClusterView,
    id: &NodeId,
) -> Result<NodeShown, Problem> {
    let mut instances = Vec::new();
    let sessions = sessions::everywhere(api).await;
    for name in records::names(&*api.store).await? {
        let Some(app) = records::find(&*api.store, &name).await? else { continue };
        let mut rows = processes::rows(api, &app).await?;
        rows.extend(processes::one_offs(&app, &sessions));
        let rows = rows.into_iter();
        instances.extend(rows.filter(|row| row.node == id.as_str() && is_running(&row.state)));
    }
    let held = cluster.held_by(id).map(ToString::to_string).collect();
    Ok(NodeShown { row: cluster.row(id), instances, holds: held })
}

fn is_running(state: &str) -> bool {
    !matches!(state, "stopped" | "crashed" | "lost")
}

#[derive(Default)]
struct NodeRecords {
    member: Option<Member>,
    info: Option<NodeInfo>,
    load: Option<NodeLoad>,
    addresses: Vec<String>,
    drained: Option<Drained>,
    /// The number of slots in which a process is alive; `ready` is the number of those that are
    /// ready.
    running: u32,
    ready: u32,
}

/// Everything that is known of all nodes at one moment.
pub(super) struct ClusterView {
    node: NodeId,
    now: Timestamp,
    nodes: BTreeMap<NodeId, NodeRecords>,
    /// The nodes that are alive; `None` if something else replicates the store, since it is not
    /// known then.
    alive: Option<BTreeSet<NodeId>>,
    /// Nodes that are alive but with which nothing is exchanged.
    apart: BTreeSet<NodeId>,
    seen: BTreeMap<NodeId, Timestamp>,
    /// Members that have received nothing yet of what the cluster has.
    behind: BTreeSet<NodeId>,
    /// The nodes to which there is a connection.
    linked: BTreeSet<NodeId>,
    notes: BTreeMap<NodeId, String>,
    holders: BTreeMap<ApplicationName, NodeId>,
    /// The state of this node itself if it is not a member like the others: joining or removed.
    standing: Option<String>,
    /// The node whose store this node uses, if it keeps none.
    uses: Option<NodeId>,
}

impl ClusterView {
    pub async fn read(api: &Api) -> Result<ClusterView, Problem> {
        let store = &*api.store;
        let mut cluster = ClusterView {
            node: api.node.clone(),
            now: api.now(),
            nodes: BTreeMap::new(),
            alive: None,
            apart: BTreeSet::new(),
            seen: BTreeMap::new(),
            behind: BTreeSet::new(),
            linked: BTreeSet::new(),
            notes: BTreeMap::new(),
            holders: holders(store).await?,
            standing: None,
            uses: None,
        };
        for entry in store.prefix(&roster::prefix()).await? {
            let Some(node) = roster::node_of(&entry.key) else { continue };
            let member: Option<Member> = readable(&entry.key, Some(&entry.value));
            cluster.nodes.insert(node.clone(), of_node(store, &node, member).await?);
        }
        cluster.count_instances(store).await?;
        if let Some(peers) = api.peers.as_deref() {
            cluster.ask(peers).await?;
        }
        Ok(cluster)
    }

    async fn count_instances(&mut self, store: &dyn Store) -> Result<(), Problem> {
        for entry in store.prefix(&prefix("instance")?).await? {
            let Some(TypedKey::Claim(_, node)) = TypedKey::parse(&entry.key) else { continue };
            let claim: Option<Claim> = readable(&entry.key, Some(&entry.value));
            let (Some(records), Some(claim)) = (self.nodes.get_mut(&node), claim) else { continue };
            let states = || claim.incarnations.iter().map(|one| one.state);
            records.running += u32::from(states().any(records::is_alive));
            records.ready += u32::from(states().any(|s| s == model::InstanceState::Ready));
        }
        Ok(())
    }

    async fn ask(&mut self, peers: &Peers) -> Result<(), Problem> {
        self.alive = Some(peers.alive().borrow().clone());
        self.apart = peers.apart();
        self.seen = peers.seen();
        self.uses = peers.store_in_use();
        let status = peers.status().await;
        let status = status.map_err(|error| Problem::internal(format!("{error:#}")))?;
        if matches!(status.state.as_str(), "joining" | "removed") {
            self.standing = Some(status.state);
        }
        for peer in status.peers {
            let Ok(id) = peer.node.parse::<NodeId>() else { continue };
            if peer.acknowledged_ms == 0 {
                self.behind.insert(id.clone());
            }
            if peer.reachable {
                self.linked.insert(id.clone());
            }
            self.notes.extend(peer.note.map(|note| (id, note)));
        }
        Ok(())
    }

    /// Finds a node by its id, the beginning of its id, or its name.
    pub fn find(&self, who: &str) -> Result<NodeId, Problem> {
        let known = || self.nodes.keys();
        if let Some(exact) = known().find(|id| id.as_str() == who) {
            return Ok(exact.clone());
        }
        let named: Vec<&NodeId> = known().filter(|id| self.name(id) == Some(who)).collect();
        let begun: Vec<&NodeId> =
            known().filter(|id| !who.is_empty() && id.as_str().starts_with(who)).collect();
        match (&named[..], &begun[..]) {
            ([one], []) | ([], [one]) => Ok((*one).clone()),
            ([one], [other]) if one == other => Ok((*one).clone()),
            ([], []) => Err(self.unknown(who)),
            _ => {
                let all: BTreeSet<&str> =
                    named.iter().chain(&begun).map(|id| id.as_str()).collect();
                let all: Vec<&str> = all.into_iter().collect();
                let what = format!("'{who}' may mean several nodes: {}", all.join(", "));
                Err(Problem::conflict("ambiguous_node", what)
                    .hint("say which one by its id, as `cortex nodes` shows it"))
            }
        }
    }

    fn unknown(&self, who: &str) -> Problem {
        let names = self.nodes.keys().filter_map(|id| self.name(id));
        let near = records::nearest(who, self.nodes.keys().map(NodeId::as_str).chain(names));
        let hint = match near {
            Some(near) => format!("did you mean '{near}'? `cortex nodes` lists all"),
            None => "`cortex nodes` lists all by id and name".into(),
        };
        Problem::missing("no_node", format!("there is no node '{who}'")).hint(hint)
    }

    fn name(&self, id: &NodeId) -> Option<&str> {
        Some(self.nodes.get(id)?.info.as_ref()?.hostname.as_str())
    }

    /// Returns `id (name)`, or only the id if the name is not known.
    pub fn called(&self, id: &NodeId) -> String {
        match self.name(id) {
            Some(name) => format!("{id} ({name})"),
            None => id.to_string(),
        }
    }

    pub fn is_here(&self, id: &NodeId) -> bool {
        *id == self.node
    }

    /// Returns whether the node is alive; `None` if that is not known.
    pub fn is_alive(&self, id: &NodeId) -> Option<bool> {
        match &self.alive {
            _ if self.is_here(id) => Some(true),
            Some(alive) => Some(alive.contains(id)),
            None => None,
        }
    }

    pub fn is_linked(&self, id: &NodeId) -> bool {
        self.linked.contains(id)
    }

    pub fn is_drained(&self, id: &NodeId) -> bool {
        self.nodes.get(id).is_some_and(|records| records.drained.is_some())
    }

    /// Returns whether instances may be given to the node.
    pub fn takes(&self, id: &NodeId) -> bool {
        let records = self.nodes.get(id).filter(|records| records.drained.is_none());
        let info = records.and_then(|records| records.info.as_ref());
        let runs = info.is_some_and(|info| info.roles.has(Role::Agent));
        runs && self.is_alive(id) != Some(false) && !self.apart.contains(id)
    }

    /// Returns the nodes that may be given instances; this node comes first if it is one of them.
    pub fn takers(&self) -> impl Iterator<Item = &NodeId> {
        let taking = || self.nodes.keys().filter(|id| self.takes(id));
        let here = taking().filter(|id| self.is_here(id));
        here.chain(taking().filter(|id| !self.is_here(id)))
    }

    pub fn all(&self) -> impl Iterator<Item = &NodeId> {
        self.nodes.keys()
    }

    pub fn others(&self, id: &NodeId) -> impl Iterator<Item = &NodeId> {
        self.nodes.keys().filter(move |other| *other != id)
    }

    pub fn running(&self, id: &NodeId) -> u32 {
        self.nodes.get(id).map_or(0, |records| records.running)
    }

    /// Returns the applications whose files are on that node only.
    pub fn held_by(&self, id: &NodeId) -> impl Iterator<Item = &ApplicationName> {
        self.holders.iter().filter(move |(_, holder)| *holder == id).map(|(name, _)| name)
    }

    pub fn rows(&self) -> Vec<NodeRow> {
        let here = Some(&self.node).filter(|node| !self.nodes.contains_key(*node));
        self.nodes.keys().chain(here).map(|id| self.row(id)).collect()
    }

    pub fn row(&self, id: &NodeId) -> NodeRow {
        let none = NodeRecords::default();
        let records = self.nodes.get(id).unwrap_or(&none);
        let info = records.info.as_ref();
        let up = u32::from(self.is_alive(id) != Some(false));
        NodeRow {
            id: id.to_string(),
            name: info.map(|info| info.hostname.clone()),
            state: self.state(id).into(),
            here: self.is_here(id),
            roles: match info {
                Some(info) => info.roles.names(),
                None => vec!["store".into()],
            },
            store_node: self.uses.as_ref().filter(|_| self.is_here(id)).map(NodeId::to_string),
            addresses: records.addresses.clone(),
            http: info.filter(|info| info.roles.has(Role::Router)).map(|info| info.http.clone()),
            load_percent: records.load.as_ref().map(|load| load.percent),
            cores: info.map(|info| info.cores),
            memory_bytes: info.map(|info| info.memory_bytes),
            // What the node reported last means nothing once it is gone.
            instances: records.running * up,
            ready: records.ready * up,
            version: info.map(|info| info.version.clone()),
            walls: info.map(|info| info.walls.clone()).unwrap_or_default(),
            joined_at: records.member.as_ref().map(|member| records::rfc3339(member.joined_at)),
            last_seen: self.last_seen(id, records).map(records::rfc3339),
            drained_since: records.drained.as_ref().map(|since| records::rfc3339(since.since)),
            note: self.notes.get(id).cloned(),
        }
    }

    fn state(&self, id: &NodeId) -> &str {
        if let Some(standing) = self.standing.as_deref().filter(|_| self.is_here(id)) {
            return standing;
        }
        let Some(records) = self.nodes.get(id) else { return "removed" };
        match self.is_alive(id) {
            Some(false) => "down",
            _ if self.apart.contains(id) => "apart",
            _ if records.drained.is_some() && records.running > 0 => "draining",
            _ if records.drained.is_some() => "drained",
            _ if records.info.is_none() && self.behind.contains(id) => "joining",
            Some(true) => "alive",
            None => "unknown",
        }
    }

    /// Returns whether what asks for this wall, or none, can run on a node.
    pub fn can_build(&self, id: &NodeId, wall: Option<Wall>) -> bool {
        let info = self.nodes.get(id).and_then(|records| records.info.as_ref());
        wall.is_none() || info.is_some_and(|info| info.can_build(wall))
    }

    fn last_seen(&self, id: &NodeId, records: &NodeRecords) -> Option<Timestamp> {
        if self.is_alive(id) == Some(true) {
            return Some(self.now);
        }
        let said = records.info.as_ref().map(|info| info.started_at);
        let measured = records.load.as_ref().map(|load| load.measured_at);
        self.seen.get(id).copied().into_iter().chain(said).chain(measured).max()
    }
}

/// Refuses what members would pass over whose builds are from before it: `harm` says what would
/// come of that, and `instead` what else can be done.
pub(super) async fn check_all_know(
    api: &Api,
    feature: Feature,
    harm: &str,
    instead: &str,
) -> Result<(), Problem> {
    let cluster = ClusterView::read(api).await?;
    let knows = |id: &NodeId| {
        let info = cluster.nodes.get(id).and_then(|records| records.info.as_ref());
        cluster.is_here(id) || info.is_some_and(|info| info.has(feature))
    };
    let older: Vec<String> =
        cluster.all().filter(|id| !knows(id)).map(|id| cluster.called(id)).collect();
    if older.is_empty() {
        return Ok(());
    }
    let detail = format!("node {} is of an older build, and {harm}", older.join(", node "));
    let hint = format!("`cortex upgrade` it, or `cortex nodes remove` it if it is gone; {instead}");
    Err(Problem::conflict("older_nodes", detail).hint(hint))
}

/// Returns the node that sees to a rollout that is asked for here; it needs an agent, and has to be
/// able to build the wall that is asked for.
pub(super) async fn coordinator(api: &Api, wall: Option<Wall>) -> Result<NodeId, Problem> {
    if api.roles.has(Role::Agent) && wall.is_none() {
        return Ok(api.node.clone());
    }
    let own = lenient::<NodeInfo>(&*api.store, TypedKey::NodeInfo(api.node.clone()).key()).await?;
    if api.roles.has(Role::Agent) && own.is_some_and(|own| own.can_build(wall)) {
        return Ok(api.node.clone());
    }
    let cluster = ClusterView::read(api).await?;
    let able = |id: &&NodeId| cluster.can_build(id, wall);
    if let Some(wall) = wall
        && cluster.takers().find(able).is_none()
    {
        let what =
            format!("no node that is alive can build the wall that it asks for: {}", wall.word());
        return Err(Problem::conflict("no_wall", what).hint(format!(
            "on one of them, {}, and start its node again; `cortex doctor` there says more",
            shim::sandbox::attempt::remedy(wall)
        )));
    }
    cluster.takers().find(able).cloned().ok_or_else(|| {
        let what = "no node that is alive runs instances".to_string();
        Problem::conflict("no_agent", what).hint(
            "start one with the role 'agent', or use one again that is drained: `cortex nodes`",
        )
    })
}

fn prefix(word: &str) -> Result<Prefix, Problem> {
    word.parse().map_err(|error| Problem::internal(format!("the prefix '{word}': {error}")))
}

async fn of_node(
    store: &dyn Store,
    node: &NodeId,
    member: Option<Member>,
) -> Result<NodeRecords, Problem> {
    let said: Option<NodeAddress> = lenient(store, roster::address_key(node)).await?;
    let entered = member.as_ref().map(|member| member.addresses.clone()).unwrap_or_default();
    Ok(NodeRecords {
        member,
        info: lenient(store, TypedKey::NodeInfo(node.clone()).key()).await?,
        load: lenient(store, TypedKey::NodeLoad(node.clone()).key()).await?,
        addresses: said.map_or(entered, |said| said.addresses),
        drained: lenient(store, TypedKey::Drained(node.clone()).key()).await?,
        running: 0,
        ready: 0,
    })
}

/// Reads a record; one that cannot be read is reported, and hides nothing else.
async fn lenient<T: DeserializeOwned>(store: &dyn Store, key: Key) -> Result<Option<T>, Problem> {
    let entry = store.lookup(&key).await?;
    Ok(readable(&key, entry.as_ref().map(|entry| &entry.value)))
}

async fn holders(store: &dyn Store) -> Result<BTreeMap<ApplicationName, NodeId>, Problem> {
    let mut holders = BTreeMap::new();
    for name in records::names(store).await? {
        let key = TypedKey::Holder(name.clone()).key();
        let spec = TypedKey::Spec(name.clone()).key();
        let spec = lenient::<ApplicationSpec>(store, spec).await?;
        let own = |holder: &Holder| spec.is_some_and(|spec| holder.is_of(spec.created_at));
        if let Some(holder) = lenient::<Holder>(store, key).await?.filter(own) {
            holders.insert(name, holder.node);
        }
    }
    Ok(holders)
}
