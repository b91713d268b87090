//! What the signatures do not say of the operations: their names, what they are for, and answers
//! that are not JSON.

use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

use api_types::{LogLine, Progress, StoreChange};

/// What a handler answers that makes its answer itself.
#[derive(Clone, Copy)]
pub enum Content {
    /// JSON objects, one a line.
    Lines(fn(&mut SchemaGenerator) -> Schema),
    Bytes,
    /// Any JSON object.
    Object,
    /// The connection itself, from then on.
    Upgrade,
}

pub struct Operation {
    pub route: &'static str,
    pub id: &'static str,
    pub summary: &'static str,
    pub success: &'static [u16],
    pub content: Option<Content>,
    /// Refusals besides those that follow from what it takes.
    pub refusals: &'static [u16],
}

const fn op(route: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation { route, id, summary, success: &[200], content: None, refusals: &[] }
}

impl Operation {
    const fn success(self, success: &'static [u16]) -> Operation {
        Operation { success, ..self }
    }

    const fn content(self, content: Content) -> Operation {
        Operation { content: Some(content), ..self }
    }

    const fn refuses(self, refusals: &'static [u16]) -> Operation {
        Operation { refusals, ..self }
    }
}

fn line<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

#[rustfmt::skip]
pub const OPERATIONS: &[Operation] = &[
    op("GET /v1/store/value", "getValue", "Returns the value of a key").content(Content::Bytes).refuses(&[404]),
    op("PUT /v1/store/value", "setValue", "Sets the value of a key"),
    op("DELETE /v1/store/value", "deleteValue", "Deletes a key").refuses(&[404]),
    op("GET /v1/store/hash", "getValueHash", "Returns the hash of a key's value").refuses(&[404]),
    op("GET /v1/store/keys", "listKeys", "Lists the keys below a prefix"),
    op("GET /v1/store/history", "listHistory", "Lists the changes below a prefix, newest first"),
    op("GET /v1/store/watch", "watchKeys", "Follows the changes below a prefix").content(Content::Lines(line::<StoreChange>)),
    op("GET /v1/store/head", "getHead", "Returns what is equal on nodes that hold the same"),
    op("GET /v1/store/export", "exportStore", "Exports the keys below a prefix").content(Content::Bytes),
    op("POST /v1/store/import", "importStore", "Writes every key of an export"),
    op("POST /v1/export", "exportCluster", "Exports the whole cluster, in clear").content(Content::Bytes).refuses(&[409]),
    op("GET /v1/backups", "showBackups", "Shows the copies of the cluster that are made by themselves"),
    op("POST /v1/backups", "scheduleBackups", "Has a copy of the cluster made every day"),
    op("DELETE /v1/backups", "unscheduleBackups", "Has no more copies made").refuses(&[409]),
    op("POST /v1/backups/capture", "captureBackup", "Has a copy made now").refuses(&[409]),
    op("GET /v1/import", "showImportReadiness", "Says whether a cluster can be imported here").refuses(&[409]),
    op("POST /v1/import", "importCluster", "Imports a whole cluster into an empty one"),
    op("POST /v1/store/squash", "squashStore", "Drops what newer changes have replaced"),
    op("POST /v1/shutdown", "shutDown", "Stops the applications here, and then the node").success(&[202]),
    op("GET /v1/cluster", "showCluster", "Shows the members of the cluster as this node sees them").refuses(&[404, 409]),
    op("POST /v1/cluster/invitations", "inviteNode", "Makes an invitation for another node").refuses(&[404]),
    op("POST /v1/cluster/sync", "syncCluster", "Exchanges everything with all members now").refuses(&[404, 409]),
    op("POST /v1/cluster/clock/trust", "trustClock", "Believes this node's clock after a leap").refuses(&[404]),
    op("GET /v1/nodes", "listNodes", "Lists the nodes"),
    op("GET /v1/nodes/{node}", "showNode", "Shows a node and what runs there").refuses(&[409]),
    op("POST /v1/nodes/{node}/drain", "drainNode", "Takes the applications off a node"),
    op("POST /v1/nodes/{node}/activate", "activateNode", "Lets a node run applications again"),
    op("POST /v1/nodes/{node}/remove", "removeNode", "Removes a node from the cluster"),
    op("GET /v1/authority", "showAuthority", "Shows the authority that issues certificates"),
    op("POST /v1/authority", "agreeToAuthority", "Agrees to the terms of an authority"),
    op("DELETE /v1/authority", "withdrawFromAuthority", "Orders no more certificates"),
    op("POST /v1/authority/terms", "showTerms", "Asks an authority for its terms").refuses(&[409]),
    op("GET /v1/isolation", "showIsolation", "Shows the isolation of applications that choose none"),
    op("POST /v1/isolation", "changeIsolation", "Chooses the isolation of applications that choose none"),
    op("GET /v1/secrets", "showSecrets", "Shows the keys that seal secrets, and how far a rotation is"),
    op("POST /v1/secrets/rotate", "rotateSecrets", "Seals all secrets with another key").refuses(&[409]),
    op("GET /v1/users", "listUsers", "Lists the users"),
    op("POST /v1/users", "addUser", "Adds a user").success(&[201]).refuses(&[404]),
    op("DELETE /v1/users/{user}", "removeUser", "Removes a user with all tokens"),
    op("POST /v1/users/{user}/grant", "grantRole", "Grants a role to a user"),
    op("POST /v1/users/{user}/revoke", "revokeRole", "Takes a role from a user"),
    op("POST /v1/users/{user}/invitations", "inviteUser", "Makes an invitation to log in").success(&[201]),
    op("GET /v1/teams", "listTeams", "Lists the teams"),
    op("POST /v1/teams", "addTeam", "Adds a team").success(&[201]),
    op("POST /v1/teams/{team}", "changeTeam", "Changes the applications and limits of a team"),
    op("DELETE /v1/teams/{team}", "removeTeam", "Removes a team"),
    op("GET /v1/tokens", "listTokens", "Lists tokens: one's own, or for an owner all"),
    op("POST /v1/tokens", "createToken", "Creates a token").success(&[201]).refuses(&[404]),
    op("DELETE /v1/tokens/{user}/{name}", "revokeToken", "Revokes a token"),
    op("POST /v1/login", "logIn", "Gives a token for an invitation").success(&[201]),
    op("GET /v1/whoami", "showCaller", "Shows who asks, their roles, and where the nodes are"),
    op("GET /v1/openapi.json", "showDescription", "Returns this document").content(Content::Object),
    op("GET /v1/audit", "listAudit", "Lists changes on all nodes, newest first"),
    op("GET /v1/apps", "listApplications", "Lists the applications that the caller sees"),
    op("GET /v1/destroyed", "listDestroyed", "Lists the applications that were destroyed and can be brought back"),
    op("POST /v1/apps", "createApplication", "Creates an application").success(&[201]),
    op("GET /v1/apps/{app}", "showApplication", "Shows an application"),
    op("DELETE /v1/apps/{app}", "destroyApplication", "Destroys an application").refuses(&[409]),
    op("POST /v1/apps/{app}/restore", "restoreApplication", "Brings an application back that was destroyed").refuses(&[409]),
    op("GET /v1/apps/{app}/isolation", "showApplicationIsolation", "Shows what is around an application, and who asked for it"),
    op("POST /v1/apps/{app}/isolation", "markApplication", "Says what is around an application, whatever its releases ask for"),
    op("GET /v1/apps/{app}/ps", "listInstances", "Lists the processes of an application"),
    op("GET /v1/apps/{app}/scale", "showScale", "Shows how many instances are wanted"),
    op("POST /v1/apps/{app}/scale", "scaleApplication", "Changes how many instances are wanted"),
    op("POST /v1/apps/{app}/port", "choosePort", "Chooses the public port of an application"),
    op("GET /v1/apps/{app}/domains", "listDomains", "Lists the domains of an application"),
    op("POST /v1/apps/{app}/domains", "changeDomains", "Changes the domains of an application"),
    op("GET /v1/apps/{app}/domains/status", "checkDomains", "Looks at DNS, reach and certificate of each domain"),
    op("POST /v1/apps/{app}/domains/{name}/retry", "retryCertificate", "Orders a certificate again at once"),
    op("GET /v1/apps/{app}/certificates", "listApplicationCertificates", "Lists the certificates of an application"),
    op("POST /v1/apps/{app}/certificates", "addCertificate", "Brings a certificate of one's own"),
    op("DELETE /v1/apps/{app}/certificates/{name}", "removeCertificate", "Removes a certificate of one's own"),
    op("GET /v1/certificates", "listCertificates", "Lists all certificates"),
    op("POST /v1/certificates/{name}/retry", "retryOwnCertificate", "Orders a certificate for a name of the platform again at once"),
    op("GET /v1/apps/{app}/persist", "listPersistentPaths", "Lists the paths that outlive releases"),
    op("POST /v1/apps/{app}/persist", "addPersistentPaths", "Adds paths that outlive releases"),
    op("GET /v1/apps/{app}/pin", "showPin", "Shows which node has the files of an application"),
    op("POST /v1/apps/{app}/pin", "pinApplication", "Moves an application and its files to a node"),
    op("GET /v1/apps/{app}/maintenance", "showMaintenance", "Shows whether an application is closed for maintenance"),
    op("POST /v1/apps/{app}/maintenance", "changeMaintenance", "Closes or opens an application"),
    op("GET /v1/apps/{app}/password", "showPassword", "Shows whether clients of an application are asked for a password"),
    op("POST /v1/apps/{app}/password", "changePassword", "Sets the password that clients are asked for, or takes it away").refuses(&[409]),
    op("GET /v1/apps/{app}/changes", "listChanges", "Lists the changes of an application that can be taken back"),
    op("POST /v1/apps/{app}/undo", "undo", "Takes a change of an application back").refuses(&[409]),
    op("POST /v1/apps/{app}/restart", "restartApplication", "Restarts an application"),
    op("GET /v1/apps/{app}/releases", "listReleases", "Lists the releases of an application, newest first"),
    op("POST /v1/apps/{app}/releases", "push", "Pushes a source as a tar archive").success(&[200, 201]),
    op("POST /v1/apps/{app}/sources/known", "comparePieces", "Tells which pieces of an archive are known"),
    op("GET /v1/apps/{app}/releases/{id}/progress", "followRelease", "Follows a release until it serves or failed").content(Content::Lines(line::<Progress>)).refuses(&[409]),
    op("POST /v1/apps/{app}/rollback", "rollBack", "Goes back to an earlier release").success(&[201]),
    op("GET /v1/apps/{app}/config", "listVariables", "Lists the variables of an application with their values"),
    op("POST /v1/apps/{app}/config", "changeVariables", "Sets and unsets variables of an application"),
    op("GET /v1/apps/{app}/logs", "readLogs", "Returns lines of the log, and follows it").content(Content::Lines(line::<LogLine>)),
    op("POST /v1/apps/{app}/run", "runCommand", "Runs a command beside an application").success(&[101]).content(Content::Upgrade).refuses(&[426]),
    op("POST /v1/apps/{app}/sessions/{id}/attach", "attachSession", "Attaches to a command that runs").success(&[101]).content(Content::Upgrade).refuses(&[426]),
    op("DELETE /v1/apps/{app}/sessions/{id}", "stopSession", "Stops a command that runs"),
    op("GET /v1/ps", "listAllInstances", "Lists the processes of all applications that the caller sees"),
    op("GET /v1/routes", "listRoutes", "Lists which instances serve which names"),
    op("GET /v1/status", "showStatus", "Shows how this node is"),
    op("GET /v1/upgrade", "showUpgrade", "Shows how far the nodes are with another binary"),
    op("POST /v1/upgrade", "startUpgrade", "Brings another binary to the nodes"),
    op("DELETE /v1/upgrade", "cancelUpgrade", "Leaves the nodes as they are that have not begun"),
    op("GET /v1/upgrade/vitals", "showVitals", "Shows what a binary on trial is judged by"),
    op("GET /v1/doctor", "checkNode", "Looks for what is wrong with this node"),
    op("GET /v1/metrics", "readMetrics", "Returns the metrics of this node"),
    op("POST /v1/fail-points/{name}", "setFailPoint", "Makes a named place fail, for tests").refuses(&[409]),
];
