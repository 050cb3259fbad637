package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	request "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"

	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/resolver"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
)

// strategies are what the API server runs when an object of the kind is created.
var strategies = map[string]rest.RESTCreateStrategy{
	"ConfigMap":                      configmap.Strategy,
	"CronJob":                        cronjob.Strategy,
	"DaemonSet":                      daemonset.Strategy,
	"Deployment":                     deployment.Strategy,
	"Job":                            job.Strategy,
	"MutatingAdmissionPolicy":        mutatingadmissionpolicy.NewStrategy(nil, nil),
	"MutatingAdmissionPolicyBinding": mutatingadmissionpolicybinding.NewStrategy(nil, nil, resolver.ResourceResolverFunc(nil)),
	"NetworkPolicy":                  networkpolicy.Strategy,
	"Pod":                            pod.Strategy,
	"Secret":                         secret.Strategy,
	"ServiceAccount":                 serviceaccount.Strategy,
	"StatefulSet":                    statefulset.Strategy,
}

// verdict is what the API server thinks of an object. Errors refuse it, warnings are printed by kubectl, and restricted
// lists what the Pod Security Standard of that name forbids in a pod. An unjudged object has fields that exist, and was not
// looked at further.
type verdict struct {
	Kind       string   `json:"kind"`
	Name       string   `json:"name"`
	Unjudged   bool     `json:"unjudged,omitempty"`
	Errors     []string `json:"errors,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`
	Restricted []string `json:"restricted,omitempty"`
}

// check judges each object, and after a workload the pod that it makes.
func check(text []byte) ([]verdict, error) {
	var verdicts []verdict
	objects, err := read(text)
	if err != nil {
		return nil, err
	}
	for _, each := range objects {
		if each.err != nil {
			verdicts = append(verdicts, verdict{Kind: each.kind.Kind, Errors: []string{each.err.Error()}})
			continue
		}
		strategy, known := strategies[each.kind.Kind]
		if !known {
			verdicts = append(verdicts, verdict{Kind: each.kind.Kind, Unjudged: true})
			continue
		}
		made, err := podOf(each.object)
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, judge(each.kind.Kind, strategy, each.object))
		if made != nil {
			verdicts = append(verdicts, judge("Pod", strategies["Pod"], made))
		}
	}
	return verdicts, nil
}

// operator reads the objects of the Prometheus Operator. It refuses unknown fields, and other kinds.
var operator = serializer.NewCodecFactory(monitoring(), serializer.EnableStrict).UniversalDeserializer()

func monitoring() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := monitoringv1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return scheme
}

// document is one object of a stream of YAML, in the internal version, with its defaults.
type document struct {
	kind   schema.GroupVersionKind
	object runtime.Object
	err    error
}

func read(text []byte) ([]document, error) {
	var documents []document
	decoder := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(part)) == 0 {
			continue
		}
		object, kind, err := decoder.Decode(part, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			_, kind, err = operator.Decode(part, nil, nil)
		}
		if kind == nil {
			kind = &schema.GroupVersionKind{}
		}
		documents = append(documents, document{*kind, object, err})
	}
}

// judge runs what the API server runs when the object is created.
func judge(kind string, strategy rest.RESTCreateStrategy, object runtime.Object) verdict {
	access, _ := meta.Accessor(object)
	ctx := request.WithNamespace(request.NewContext(), metav1.NamespaceNone)
	if strategy.NamespaceScoped() {
		if access.GetNamespace() == "" {
			access.SetNamespace("default")
		}
		ctx = request.WithNamespace(ctx, access.GetNamespace())
	}
	rest.FillObjectMetaSystemFields(access)
	found := verdict{Kind: kind, Name: access.GetName()}
	if err := rest.BeforeCreate(strategy, ctx, object); err != nil {
		found.Errors = append(found.Errors, err.Error())
	}
	found.Warnings = strategy.WarningsOnCreate(ctx, object)
	if made, is := object.(*core.Pod); is {
		restricted, err := restrictions(made)
		if err != nil {
			found.Errors = append(found.Errors, err.Error())
		}
		found.Restricted = restricted
	}
	return found
}

// podOf is the pod that the controller of a workload makes, with its claims in place of volumes of the same names. It is
// nil if the object is no workload.
func podOf(object runtime.Object) (*core.Pod, error) {
	var template core.PodTemplateSpec
	var claims []core.PersistentVolumeClaim
	switch owner := object.(type) {
	case *apps.DaemonSet:
		template = owner.Spec.Template
	case *apps.Deployment:
		template = owner.Spec.Template
	case *apps.StatefulSet:
		template, claims = owner.Spec.Template, owner.Spec.VolumeClaimTemplates
	case *batch.Job:
		template = owner.Spec.Template
	case *batch.CronJob:
		template = owner.Spec.JobTemplate.Spec.Template
	default:
		return nil, nil
	}
	made := &core.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	made = made.DeepCopy()
	made.Name, made.Namespace = "made", metav1.NamespaceDefault
	if made.Spec.ServiceAccountName == "" {
		made.Spec.ServiceAccountName = "default" // as the admission of a cluster does, before it validates
	}
	claimed := map[string]bool{}
	var volumes []core.Volume
	for _, claim := range claims {
		source := &core.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-made"}
		volumes = append(volumes, core.Volume{Name: claim.Name, VolumeSource: core.VolumeSource{PersistentVolumeClaim: source}})
		claimed[claim.Name] = true
	}
	for _, volume := range made.Spec.Volumes {
		if !claimed[volume.Name] {
			volumes = append(volumes, volume)
		}
	}
	made.Spec.Volumes = volumes
	external := &corev1.Pod{} // a pod has defaults that its template lacks
	if err := legacyscheme.Scheme.Convert(made, external, nil); err != nil {
		return nil, err
	}
	legacyscheme.Scheme.Default(external)
	made = &core.Pod{}
	return made, legacyscheme.Scheme.Convert(external, made, nil)
}

// restrictions lists what the Pod Security Standard "restricted" forbids in a pod.
func restrictions(made *core.Pod) ([]string, error) {
	external := &corev1.Pod{}
	if err := legacyscheme.Scheme.Convert(made, external, nil); err != nil {
		return nil, err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	var found []string
	for _, result := range evaluator.EvaluatePod(level, &external.ObjectMeta, &external.Spec) {
		if !result.Allowed {
			found = append(found, fmt.Sprintf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail))
		}
	}
	return found, nil
}
