package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
)

// admitted is a Pod as the API server would store it, or the reason why it refuses the Pod.
type admitted struct {
	Refused string          `json:"refused,omitempty"`
	Pod     json.RawMessage `json:"pod,omitempty"`
	Verdict *verdict        `json:"verdict,omitempty"`
}

// admit applies policies, bindings and their parameters to each Pod of the stream. A namespace exists if a Pod is in it.
func admit(text []byte) ([]admitted, error) {
	documents, err := read(text)
	if err != nil {
		return nil, err
	}
	var pods []*core.Pod
	var rest []runtime.Object
	spaces := map[string]*corev1.Namespace{}
	for _, each := range documents {
		if each.err != nil {
			return nil, each.err
		}
		if pod, is := each.object.(*core.Pod); is {
			if pod.Namespace == "" {
				pod.Namespace = metav1.NamespaceDefault
			}
			pods = append(pods, pod)
			if spaces[pod.Namespace] == nil {
				spaces[pod.Namespace] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
			}
			continue
		}
		external, err := legacyscheme.Scheme.ConvertToVersion(each.object, each.kind.GroupVersion())
		if err != nil {
			return nil, err
		}
		if space, is := external.(*corev1.Namespace); is {
			spaces[space.Name] = space
			continue
		}
		if access, _ := meta.Accessor(external); each.kind.Kind == "ConfigMap" && access.GetNamespace() == "" {
			access.SetNamespace(metav1.NamespaceDefault)
		}
		rest = append(rest, external)
	}
	for _, space := range spaces {
		rest = append(rest, space)
	}
	plugin, stop, err := policies(rest)
	if err != nil {
		return nil, err
	}
	defer stop()
	answers := []admitted{}
	for _, pod := range pods {
		answer, err := one(plugin, pod)
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// one passes a Pod through the plugin, as often as the API server would, and then through validation.
func one(plugin *mutating.Plugin, pod *core.Pod) (admitted, error) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	resource := corev1.SchemeGroupVersion.WithResource("pods")
	who := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:replicaset-controller"}
	attributes := admission.NewAttributesRecord(pod, nil, kind, pod.Namespace, pod.Name, resource, "",
		admission.Create, &metav1.CreateOptions{}, false, who)
	interfaces := admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme)
	if err := plugin.Admit(context.Background(), attributes, interfaces); err != nil {
		return admitted{Refused: err.Error()}, nil
	}
	if again := attributes.GetReinvocationContext(); again.ShouldReinvoke() {
		again.SetIsReinvoke()
		if err := plugin.Admit(context.Background(), attributes, interfaces); err != nil {
			return admitted{Refused: err.Error()}, nil
		}
	}
	external := &corev1.Pod{}
	if err := legacyscheme.Scheme.Convert(pod, external, nil); err != nil {
		return admitted{}, err
	}
	external.SetGroupVersionKind(kind)
	written, err := json.Marshal(external)
	found := judge("Pod", strategies["Pod"], pod)
	return admitted{Pod: written, Verdict: &found}, err
}

// policies is the API server's plugin, with the objects in place of what a cluster holds.
func policies(objects []runtime.Object) (*mutating.Plugin, func(), error) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	client := &cluster{Interface: fake.NewSimpleClientset(append(objects, canaries()...)...)}
	factory := informers.NewSharedInformerFactory(client, 0)
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	plugin, err := mutating.NewPlugin(nil)
	if err != nil {
		return nil, stop, err
	}
	initializer.New(client, dynamicfake.NewSimpleDynamicClient(legacyscheme.Scheme), factory,
		authorizerfactory.NewAlwaysAllowAuthorizer(), utilfeature.DefaultFeatureGate,
		compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), mapper).Initialize(plugin)
	plugin.SetEnabled(true)
	if err := plugin.ValidateInitialization(); err != nil {
		return nil, stop, err
	}
	factory.Core().V1().ConfigMaps().Informer()
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, stop, fmt.Errorf("%s were not read", kind)
		}
	}
	return plugin, stop, settle(ctx, plugin)
}

// canary is a policy of our own, which labels the pods of its kind. The plugin reads policies and schemas in the
// background, all at once: it is ready when it has labelled one.
const canary = "canary"

func canaries() []runtime.Object {
	labelled := &metav1.LabelSelector{MatchLabels: map[string]string{canary: ""}}
	fail, match := admissionv1.Fail, admissionv1.Equivalent
	return []runtime.Object{
		&admissionv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: canary},
			Spec: admissionv1.MutatingAdmissionPolicySpec{
				FailurePolicy:      &fail,
				ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				MatchConstraints: &admissionv1.MatchResources{
					MatchPolicy: &match, NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: labelled,
					ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Create},
						Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
					}}},
				},
				Mutations: []admissionv1.Mutation{{
					PatchType:          admissionv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: `Object{spec: Object.spec{hostname: "seen"}}`},
				}},
			},
		},
		&admissionv1.MutatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: canary}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: canary},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: canary}},
	}
}

// settle waits until the plugin applies the canary.
func settle(ctx context.Context, plugin *mutating.Plugin) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		labels := map[string]string{canary: ""}
		pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: canary, Namespace: canary, Labels: labels}}
		answer, err := one(plugin, pod)
		return answer.Refused == "" && pod.Spec.Hostname == "seen", err
	})
}

// cluster is a client whose discovery knows the schemas of the API. The other parts of discovery are not asked.
type cluster struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported says that lists come before watches, as the fake client says of itself.
func (*cluster) IsWatchListSemanticsUnSupported() bool { return true }

type schemas struct{ discovery.DiscoveryInterface }

func (c *cluster) Discovery() discovery.DiscoveryInterface { return schemas{c.Interface.Discovery()} }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }
